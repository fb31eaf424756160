"""Part files on a local or shared POSIX file system."""
