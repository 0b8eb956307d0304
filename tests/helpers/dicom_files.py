"""DICOM files of nobody: slices of a series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

#: Rows and columns of a slice that is tilted in two ways.
ROW = np.array([0.96, 0.28, 0.0])
COLUMN = np.array([-0.168, 0.576, 0.8])
NORMAL = np.cross(ROW, COLUMN)
CORNER, GAP = np.array([-100.25, 42.5, -300.125]), 2.5


def slice_of(number: int, rows: int = 6, columns: int = 5) -> Any:
    """A CT slice of somebody, with Hounsfield units that say where each voxel is."""
    import pydicom

    ds = pydicom.Dataset()
    ds.file_meta = pydicom.dataset.FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    ds.file_meta.MediaStorageSOPClassUID = ds.SOPClassUID = pydicom.uid.CTImageStorage
    ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID = f"1.2.3.4.{number + 1}"
    ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.FrameOfReferenceUID = "1.2.77", "1.2.88", "1.2.99"
    ds.Modality, ds.SeriesNumber, ds.InstanceNumber = "CT", 3, number + 1
    ds.PatientName, ds.PatientID, ds.PatientBirthDate, ds.PatientSex = "Doe^Jane", "MRN-4711", "19700101", "F"
    ds.StudyDate, ds.StudyTime, ds.AccessionNumber, ds.StudyID = "20200202", "101010", "ACC-31", "STUDY-9"
    ds.ReferringPhysicianName, ds.InstitutionName, ds.StudyDescription = "House^Greg", "Princeton", "Jane's thorax"
    ds.Rows, ds.Columns, ds.SamplesPerPixel, ds.PhotometricInterpretation = rows, columns, 1, "MONOCHROME2"
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 12, 11, 0
    ds.RescaleSlope, ds.RescaleIntercept = 2, -1024
    ds.PixelSpacing, ds.SliceThickness = [0.75, 0.5], 2.5
    ds.ImageOrientationPatient = [*ROW, *COLUMN]
    ds.ImagePositionPatient = [round(float(v), 9) for v in CORNER + number * GAP * NORMAL]
    pixels = number * 100 + np.arange(rows)[:, None] * 10 + np.arange(columns)
    ds.PixelData = pixels.astype("<u2").tobytes()
    return ds


def saved(folder: Path, slices: list[Any], names: list[str] | None = None) -> Path:
    """Writes slices into a folder; names are in another order than places."""
    folder.mkdir(exist_ok=True)
    for i, ds in enumerate(slices):
        # Names in another order than places.
        name = names[i] if names else f"IM{(7 * i + 3) % 11:04d}"
        ds.save_as(folder / name, enforce_file_format=True)
    return folder
