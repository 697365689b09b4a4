"""TFRecord and tf.train.Example without TensorFlow: against an encoder of their definitions, and against protobuf itself."""

import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.encode import encode_png
from vitrail.data.source import list_splits, open_source
from vitrail.data.tfrecord import find_prepared, masked_crc, parse_example, record_places
from vitrail.errors import DataError, DecodeError

_spec = importlib.util.spec_from_file_location("records", Path(__file__).parent / "records.py")
records = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(records)


def png(value, size=4):
    return encode_png(np.full((size, size, 3), value, np.uint8))


def test_the_checksum_is_crc_32c():
    assert records.crc32c(b"123456789") == 0xE3069283  # the polynomial's published check value
    assert masked_crc(b"123456789") == records.masked(b"123456789")


@pytest.mark.parametrize("packed", [True, False])
def test_every_kind_of_field_is_read_packed_or_not(packed):
    fields = {"image": b"\x00png", "location": np.array([1.5, -2.25, 3.0], np.float32), "type": np.array([0, 300, -1]), "empty": b""}
    found = parse_example(records.example(fields, packed))
    assert found["image"] == [b"\x00png"] and found["empty"] == [b""]
    assert found["location"].tolist() == [1.5, -2.25, 3.0]
    assert found["type"].tolist() == [0, 300, -1]
    assert set(parse_example(records.example(fields, packed), ("type",))) == {"type"}


def test_protobuf_itself_is_understood():
    """The message types built from their definition; protobuf decides how they are written."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name, *fields):
        entry = file.message_type.add(name=name)
        for number, (field, kind, repeated, of) in enumerate(fields, 1):
            entry.field.add(name=field, number=number, type=kind, label=3 if repeated else 1, type_name=of)
        return entry

    message("BytesList", ("value", 12, True, None))
    message("FloatList", ("value", 2, True, None))
    message("Int64List", ("value", 3, True, None))
    kinds = ("bytes_list", 11, False, ".t.BytesList"), ("float_list", 11, False, ".t.FloatList"), ("int64_list", 11, False, ".t.Int64List")
    message("Feature", *kinds)
    features = message("Features", ("feature", 11, True, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=11, label=1, type_name=".t.Feature")
    message("Example", ("features", 11, False, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))()
    made.features.feature["a"].int64_list.value.extend([5, -7, 1 << 40])
    made.features.feature["b"].float_list.value.extend([0.5, 2.0])
    made.features.feature["c"].bytes_list.value.extend([b"x" * 300, b""])
    found = parse_example(made.SerializeToString())
    assert found["a"].tolist() == [5, -7, 1 << 40]
    assert found["b"].tolist() == [0.5, 2.0]
    assert found["c"] == [b"x" * 300, b""]


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_message_that_ends_early_is_corrupt_and_nothing_else(cut):
    whole = records.example({"image": b"x" * 50, "label": 3})
    with pytest.raises(DecodeError):
        parse_example(whole[:-cut] if cut < 20 else b"\xff" * 40)


def test_a_file_that_ends_early_or_is_something_else_is_refused_with_its_name(tmp_path):
    path = tmp_path / "a.tfrecord"
    records.write_records(path, [b"one", b"two"])
    assert record_places(path)[1].tolist() == [3, 3]
    whole = path.read_bytes()
    for bad in (whole[:-1], whole[:-20], b"PNG" * 20):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"a\.tfrecord"):
            record_places(path)
    path.write_bytes(b"")
    assert len(record_places(path)[0]) == 0


@pytest.fixture
def prepared(tmp_path):
    make = lambda k: {"image": png(k), "label": k % 3, "coarse": k % 2}
    splits = {"train": [[make(k) for k in range(5)], [make(k) for k in range(5, 7)]], "validation": [[make(9)]]}
    return records.write_tfds(tmp_path / "toy" / "1.0.0", "toy", splits, {"label": ["a", "b", "c"], "coarse": ["even", "odd"]})


def test_a_folder_of_tfds_is_a_source_in_record_order(prepared):
    address = f"tfds:{prepared}"
    assert list_splits(address) == ("train", "val")
    source = open_source(address, "train")
    assert source.official and source.classes == ("a", "b", "c")
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert open_source(address, "train[4:6]").labels.tolist() == [1, 2]
    assert pickle.loads(pickle.dumps(source)).read(5).data == png(5)
    assert source.id(5) == "toy-train.tfrecord-00001-of-00002:0"
    assert open_source(f"{address}?label=coarse", "val").labels.tolist() == [1]
    assert source.fingerprint == open_source(address, "train").fingerprint != open_source(f"{address}?label=coarse", "train").fingerprint


def test_a_missing_shard_a_wrong_count_and_another_format_are_refused(prepared):
    info = prepared / "dataset_info.json"
    text = info.read_text()
    info.write_text(text.replace('"2"', '"3"'))
    with pytest.raises(DataError, match="has 2 records, and"):
        open_source(f"tfds:{prepared}", "train")
    info.write_text(text.replace('"fileFormat": "tfrecord"', '"fileFormat": "riegeli"'))
    with pytest.raises(DataError, match="riegeli"):
        open_source(f"tfds:{prepared}", "train")
    info.write_text(text)
    (prepared / "toy-train.tfrecord-00001-of-00002").unlink()
    with pytest.raises(DataError, match="00001-of-00002"):
        open_source(f"tfds:{prepared}", "train")


def test_the_newest_fitting_version_is_found(prepared):
    root = prepared.parent.parent
    records.write_tfds(root / "toy" / "1.10.0", "toy", {"train": [[{"image": png(0), "label": 0}]]})
    records.write_tfds(root / "toy" / "2.0.0", "toy", {"train": [[{"image": png(0), "label": 0}]]})
    assert find_prepared(root, "toy", 1).path.name == "1.10.0"
    assert find_prepared(root / "toy").path.name == "2.0.0"
    with pytest.raises(DataError, match=r"no version 3.*1\.0\.0"):
        find_prepared(root, "toy", 3)
