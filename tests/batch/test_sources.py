"""Every kind of source gives each image once, in order, with an id that stays the same."""

import glob
import io
import os
import pickle
import tarfile

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tvm_passes.batch import BadImage, BatchError
from tvm_passes.batch.sources import check_any, count, items_of


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Five images, each of which has its name as its bytes, and other files."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.jpg", "a.PNG", "in/c.webp", "in/deep/d.jpeg", "z.tif", "in/notes.txt", ".DS_Store"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    return tmp_path / "photos"


def contents(source):
    """What another process reads, to which an item is sent."""
    items = (pickle.loads(pickle.dumps(item)) for item in items_of(source))
    return [(item.id, item.read().decode()) for item in items]


def test_a_folder(files):
    expected = [("a.PNG", "a.PNG"), ("b.jpg", "b.jpg"), ("in/c.webp", "c.webp")]
    expected += [("in/deep/d.jpeg", "d.jpeg"), ("z.tif", "z.tif")]
    assert contents(files) == contents(f"{files}/") == contents("photos") == expected
    assert count(files) == 5


def test_a_folder_is_read_as_it_is_walked(files):
    items = items_of(files)
    assert next(items).id == "a.PNG"
    (files / "in" / "deep" / "later.jpg").write_text("later.jpg")
    assert "in/deep/later.jpg" in [item.id for item in items]


def test_links(files, tmp_path):
    """Folders are followed, but not around in a circle."""
    (files / "in" / "around").symlink_to(files)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "e.jpg").write_text("e.jpg")
    (files / "link").symlink_to(tmp_path / "elsewhere")
    ids = [name for name, _ in contents(files)]
    assert ids == ["a.PNG", "b.jpg", "in/c.webp", "in/deep/d.jpeg", "link/e.jpg", "z.tif"]


def test_a_link_to_itself(files):
    """It is an image that cannot be read, and the others are."""
    (files / "self.png").symlink_to("self.png")
    items = {item.id: item for item in items_of(files)}
    assert list(items) == ["a.PNG", "b.jpg", "in/c.webp", "in/deep/d.jpeg", "self.png", "z.tif"]
    with pytest.raises(BadImage, match="cannot be read: Too many levels of symbolic links"):
        items["self.png"].read()


def test_a_folder_that_cannot_be_read(files, monkeypatch):
    real = os.scandir

    def refuse(folder):
        if os.path.basename(folder) == "deep":
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr("tvm_passes.batch.sources.os.scandir", refuse)
    items = {item.id: item for item in items_of(files)}
    assert list(items) == ["a.PNG", "b.jpg", "in/c.webp", "in/deep/", "z.tif"]
    with pytest.raises(BadImage, match="is a folder that cannot be read: Permission denied"):
        items["in/deep/"].read()
    with pytest.raises(BatchError, match="deep cannot be read: Permission denied"):
        list(items_of(files / "in" / "deep"))


def test_globs(files):
    assert contents("photos/*.jpg") == [("b.jpg", "b.jpg")]
    assert [name for name, _ in contents(str(files / "**" / "*.*p*g"))] == ["b.jpg", "in/deep/d.jpeg"]
    assert contents("photos/in*/[c]*") == [("in/c.webp", "c.webp")]
    assert contents("photos/*.none") == []


@pytest.mark.parametrize("pattern", ["photos/**/*.jp*g", "./photos/**/*.jp*g", "**/*.jp*g"])
def test_a_glob_does_not_go_around_in_a_circle(files, pattern):
    """As a folder does not: each file was there forty times."""
    for name in "around", "again", "once more":  # by each of which to each of the others
        (files / "in" / name).symlink_to(files)
    (files / "link").symlink_to(files / "in" / "deep")
    found = [read for _, read in contents(pattern)]
    assert sorted(found) == ["b.jpg", "d.jpeg", "d.jpeg"]


@pytest.mark.parametrize("pattern", ["photos/**", "photos/i*/**/*.*", "**/deep/**/*.jpeg", "photos/**/**"])
def test_a_glob_finds_what_python_finds(files, pattern):
    (files / ".hidden").mkdir()
    (files / ".hidden" / "h.jpg").write_text("h.jpg")
    wanted = sorted({path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path)})
    found = [os.path.basename(name) for name, _ in contents(pattern)]
    assert found == [os.path.basename(path) for path in wanted]


def test_a_text_file_of_paths(files):
    """Relative to its folder; the same line again is the same image."""
    (files / "list.txt").write_text(f"b.jpg\nin/c.webp\r\n\nb.jpg\n{files / 'z.tif'}\nnowhere.jpg")
    items = list(items_of(files / "list.txt"))
    assert [item.id for item in items] == ["b.jpg", "in/c.webp", str(files / "z.tif"), "nowhere.jpg"]
    assert [item.read() for item in items[:3]] == [b"b.jpg", b"c.webp", b"z.tif"]
    assert count(files / "list.txt") == 5  # lines
    with pytest.raises(BadImage, match="does not exist"):
        items[3].read()


def test_a_list_of_paths(files):
    assert contents(["photos/b.jpg", files / "z.tif"]) == [
        ("photos/b.jpg", "b.jpg"),
        (str(files / "z.tif"), "z.tif"),
    ]


def write_parquet(path, **columns):
    parquet.write_table(pa.table(columns), path, row_group_size=7)
    return path


def test_a_parquet_file(tmp_path):
    images = [f"image {number}".encode() for number in range(40)]
    names = [f"n{number}" for number in range(40)]
    path = write_parquet(tmp_path / "images.parquet", image_id=names, label=list(range(40)), bytes=images)
    assert contents(path) == [(name, image.decode()) for name, image in zip(names, images)]
    assert count(path) == 40
    nameless = write_parquet(tmp_path / "nameless.parquet", image=images)
    assert [name for name, _ in contents(nameless)] == [str(number) for number in range(40)]


def test_a_parquet_file_of_hugging_face(tmp_path):
    images = [{"bytes": b"one", "path": "1.jpg"}, {"bytes": b"two", "path": None}]
    assert contents(write_parquet(tmp_path / "a.parquet", image=images)) == [("0", "one"), ("1", "two")]


def test_rows_without_an_image_and_ids_that_are_there_twice(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", id=["x", "x", "y", "x"], bytes=[b"1", b"2", None, b"3"])
    items = list(items_of(path))
    assert [item.id for item in items] == ["x", "x#2", "y", "x#3"]
    assert [items[index].read() for index in (0, 1, 3)] == [b"1", b"2", b"3"]
    with pytest.raises(BadImage, match="is null"):
        items[2].read()


def write_tar(path, *members):
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                info.size = len(data)
            tar.addfile(info, None if data is None else io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["shard.tar", "shard.tgz"])
def test_a_tar(tmp_path, name):
    members = ("0001.jpg", b"one"), ("0001.json", b"{}"), ("in/0002.png", b"two"), ("0003.jpg", None)
    items = list(items_of(write_tar(tmp_path / name, *members, ("0001.jpg", b"three"))))
    assert [item.id for item in items] == ["0001.jpg", "in/0002.png", "0003.jpg", "0001.jpg#2"]
    assert [items[index].read() for index in (0, 1, 3)] == [b"one", b"two", b"three"]
    with pytest.raises(BadImage, match="is not a file"):  # a link leads out of the tar
        items[2].read()


def test_several_tars(tmp_path):
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", ("a.jpg", f"{number}".encode()))
    assert contents(str(tmp_path / "*.tar")) == [("0.tar/a.jpg", "0"), ("1.tar/a.jpg", "1")]
    assert count(str(tmp_path / "*.tar")) is count(tmp_path / "0.tar") is None  # without reading them


def test_a_tar_that_is_cut(tmp_path):
    whole = write_tar(tmp_path / "a.tar", ("1.jpg", b"x" * 2000), ("2.jpg", b"x" * 20000)).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:6000])
    items = items_of(tmp_path / "cut.tar")
    assert next(items).id == "1.jpg"
    with pytest.raises(BatchError, match=r"cut.tar is damaged: .*; what came before is done"):
        list(items)


def test_files_that_cannot_be_read(files, monkeypatch):
    os.mkfifo(files / "pipe.jpg")
    (files / "folder.txt").write_text("in\nb.jpg\npipe.jpg")
    folder, image, pipe = items_of(files / "folder.txt")
    for item in folder, pipe:
        with pytest.raises(BadImage, match="is not a file"):
            item.read()
    monkeypatch.setattr("tvm_passes.batch.item.MAX_BYTES", 4)
    with pytest.raises(BadImage, match="has 5 bytes, more than the 4 that are allowed"):
        image.read()

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tvm_passes.batch.sources.os.stat", refuse)
    with pytest.raises(BadImage, match="cannot be read: Permission denied"):
        image.read()


def test_names_that_are_not_text(files):
    (files / os.fsdecode(b"caf\xe9.jpg")).write_text("x")
    assert ("caf\\xe9.jpg", "x") in contents(files)


def test_sources_without_images(files, tmp_path):
    (tmp_path / "no paths.txt").write_text("\n")
    for source in (str(files / "*.jpeg"), tmp_path / "no paths.txt", []):
        with pytest.raises(BatchError, match="there are no images in"):
            check_any(source)
    (tmp_path / "shards").mkdir()
    write_parquet(tmp_path / "shards" / "0.parquet", bytes=[b"1"])
    with pytest.raises(BatchError, match=r"shards: give '.*shards/\*.parquet' for the files that have them"):
        check_any(tmp_path / "shards")
    check_any(files)
    check_any(write_parquet(tmp_path / "no rows.parquet", bytes=[]))  # as of one shard of many


def test_a_text_file_that_windows_wrote(tmp_path):
    (tmp_path / "list.txt").write_text("b.jpg", encoding="utf-16")
    with pytest.raises(BatchError, match="is text in UTF-16, as Windows writes it: save it as UTF-8"):
        check_any(tmp_path / "list.txt")


@pytest.mark.parametrize("source", [5, b"photos", {"photos"}])
def test_what_is_no_source(source):
    with pytest.raises(BatchError, match="is neither a path nor a list of paths: give a folder"):
        check_any(source)


def test_sources_that_are_none(files, tmp_path):
    with pytest.raises(BatchError, match="there is no nowhere: give a folder, a glob, a text file"):
        items_of("nowhere")
    with pytest.raises(BatchError, match=r"b.jpg is one file: give a folder"):
        items_of(files / "b.jpg")
    numbers = write_parquet(tmp_path / "numbers.parquet", x=[1])
    with pytest.raises(BatchError, match="has the columns x, none of which is of bytes"):
        list(items_of(numbers))
    (tmp_path / "text.parquet").write_text("Dear all,")
    with pytest.raises(BatchError, match=r"text.parquet cannot be read"):
        list(items_of(tmp_path / "text.parquet"))
