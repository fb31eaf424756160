"""Known vulnerabilities of what partfile installs: ``dependency_audit.py`` runs pip-audit and judges its answer.

pip-audit ends well where the service knows no package at all, as behind a mirror that has files alone, so its exit code
does not say that anything was looked at.
"""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping


ROOT = Path(__file__).parents[3]
EXTRAS = ("cli", "fast", "spark", "s3", "hdfs")
SERVICES = ("pypi", "osv")
STRICT = "--strict"
"""With it an audit that could not be done fails."""
_TIMEOUT_S = 240
_RED, _PLAIN = "\033[1;31m", "\033[0m"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an audit came to."""

    is_done: bool
    """Whether every package was looked up."""
    vulnerable: tuple[str, ...]
    """Each known vulnerability, in words."""
    unknown: tuple[str, ...]
    """Packages that were not looked up."""


def named() -> list[Requirement]:
    """What setup.cfg names for those who use partfile: required packages, and the extras of stores and Spark."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = [setup["options"]["install_requires"], *(setup["options.extras_require"][extra] for extra in EXTRAS)]
    return [Requirement(line) for text in texts for line in text.splitlines() if line.strip()]


def installed() -> dict[str, str]:
    """The versions of what partfile needs, and of what that needs in turn, as they are installed here."""
    found: dict[str, str] = {}
    to_see, seen = named(), set[str]()
    while to_see:
        requirement = to_see.pop()
        if str(requirement) in seen or not _is_meant(requirement, {""}):
            continue
        seen.add(str(requirement))
        try:
            package = distribution(requirement.name)
        except PackageNotFoundError:
            continue
        found[re.sub(r"[-_.]+", "-", requirement.name).lower()] = package.version
        inner = map(Requirement, package.requires or ())
        to_see += [_without_extra(one) for one in inner if _is_meant(one, {"", *requirement.extras})]
    return found


def _is_meant(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def _without_extra(requirement: Requirement) -> Requirement:
    """The requirement after its marker was found to hold."""
    requirement.marker = None
    return requirement


def judged(wanted: Mapping[str, str], report: Any) -> Verdict:
    """What an answer of pip-audit in JSON says; None is no answer."""
    packages = [] if report is None else report["dependencies"]
    looked_up = {package["name"] for package in packages if "vulns" in package}
    vulnerable = [
        f"{package['name']} {package['version']}: {one['id']}, mended in {', '.join(one['fix_versions']) or 'none'}"
        for package in packages
        for one in package.get("vulns", ())
    ]
    unknown = tuple(sorted(set(wanted) - looked_up))
    return Verdict(not unknown, tuple(vulnerable), unknown)


def asked(wanted: Mapping[str, str], service: str) -> Any:
    """The answer of a service; None if there is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in wanted.items())
        file.flush()
        command = ["-m", "pip_audit", "-s", service, "-f", "json", "-r", file.name, "--no-deps", "--disable-pip"]
        done = subprocess.run(
            [sys.executable, *command, "--progress-spinner", "off", "--timeout", "10"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return None


def main() -> int:
    """Audit, and say what was found."""
    wanted = installed()
    for service in SERVICES:
        verdict = judged(wanted, asked(wanted, service))
        if verdict.vulnerable:
            print(*verdict.vulnerable, sep="\n")  # noqa: T201
            return 1
        if verdict.is_done:
            print(f"No known vulnerability in {len(wanted)} packages, says {service}")  # noqa: T201
            return 0
    print(  # noqa: T201
        f"{_RED}NOT AUDITED: neither {' nor '.join(SERVICES)} tells anything of {len(verdict.unknown)} of "
        f"{len(wanted)} packages from here. Run `make audit` where the internet is reachable.{_PLAIN}",
        file=sys.stderr,
    )
    return 1 if STRICT in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
