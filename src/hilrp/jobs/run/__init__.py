"""Whole data sets: every image explained once, on one machine or many, whatever happens in between.

A data set becomes a list of items (`items`), cut into pieces. A worker (`worker`) explains a piece and writes its rows
as one Parquet file, which appears whole or not at all; a piece whose file is there is done. So nothing is lost or done
twice, whoever is killed: an engine (`engines`) only has to see to it that every piece is somebody's.
"""
