"""TFRecord files and TFDS folders for tests, written by hand: an encoder that shares nothing with the reader."""

import json
import struct

import numpy as np


def crc32c(data):
    """Bit by bit, as the definition says."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n >= 128:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def block(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


def feature(value, packed=True):
    if isinstance(value, bytes):
        return block(1, block(1, value))
    values = np.atleast_1d(value)
    if values.dtype.kind == "f":
        words = [struct.pack("<f", x) for x in values]
        body = block(1, b"".join(words)) if packed else b"".join(varint(1 << 3 | 5) + word for word in words)
        return block(2, body)
    words = [varint(int(x)) for x in values]
    return block(3, block(1, b"".join(words)) if packed else b"".join(varint(1 << 3) + word for word in words))


def example(fields, packed=True):
    entries = [block(1, block(1, name.encode()) + block(2, feature(value, packed))) for name, value in fields.items()]
    return block(1, b"".join(entries))


def write_records(path, records):
    with open(path, "wb") as file:
        for data in records:
            head = struct.pack("<Q", len(data))
            file.write(head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data[:64])))


def write_tfds(folder, name, splits, labels=None, form="tfrecord"):
    """splits: name -> list of shards, each a list of dictionaries of fields."""
    folder.mkdir(parents=True)
    told = []
    for split, shards in splits.items():
        for k, shard in enumerate(shards):
            write_records(folder / f"{name}-{split}.tfrecord-{k:05d}-of-{len(shards):05d}", [example(fields) for fields in shard])
        told.append({"name": split, "shardLengths": [str(len(shard)) for shard in shards], "numBytes": "1"})
    (folder / "dataset_info.json").write_text(json.dumps({"name": name, "fileFormat": form, "splits": told}))
    for field, names in (labels or {}).items():
        (folder / f"{field}.labels.txt").write_text("\n".join(names) + "\n")
    return folder
