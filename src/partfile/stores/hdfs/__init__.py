"""Part files on HDFS, through hdfs-native."""
