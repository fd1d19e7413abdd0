"""Bytes of PNG and DICOM files with given pixels."""

import io

import pydicom
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid


def png(pixels, **options):
    target = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(target, format="PNG", **options)
    return target.getvalue()


def dicom(values, *, bits=12, slope=2.0, intercept=-100.0, syntax=ExplicitVRLittleEndian, **tags):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPInstanceUID = syntax, generate_uid()
    meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    found = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    told = {
        "PatientID": "p1", "SeriesInstanceUID": "1.2.3", "BurnedInAnnotation": "NO",
        "PatientName": "Zacharias", "ViewPosition": "PA", "WindowCenter": 1, "WindowWidth": 2,
        "Rows": values.shape[-2], "Columns": values.shape[-1], "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2", "BitsAllocated": 16, "BitsStored": bits,
        "HighBit": bits - 1, "PixelRepresentation": int(values.dtype.kind == "i"),
        "RescaleSlope": slope, "RescaleIntercept": intercept,
    } | tags  # fmt: skip
    for name, value in told.items():
        if value is not None:
            setattr(found, name, value)
    found.PixelData = values.astype("<u2" if values.dtype.kind == "u" else "<i2").tobytes()
    if syntax.is_compressed:
        found.PixelData = pydicom.encaps.encapsulate([found.PixelData])
        found["PixelData"].is_undefined_length = True
    target = io.BytesIO()
    found.save_as(target, enforce_file_format=True)
    return target.getvalue()
