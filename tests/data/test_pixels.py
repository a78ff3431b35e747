import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import bad_files, near, save_image
from PIL import Image

from refilled.data import memory, pixels
from refilled.data.decode import decode
from refilled.data.images import ImageSet, check_trainable, load_set
from refilled.data.pixels import FilePixels, TensorPixels, common_side
from refilled.errors import UserError
from refilled.labels import LabelSpace


def test_files_are_decoded_once_into_one_tensor(tmp_path, monkeypatch):
    paths = [save_image(tmp_path / f"{index}.png", side=6, seed=index) for index in range(400)]
    calls: list[Path] = []
    lock = threading.Lock()

    def counted(path, size, channels, box):
        with lock:
            calls.append(path)
        return decode(path, size, channels, box)

    allocated = []
    real_empty = torch.empty
    monkeypatch.setattr(pixels, "decode", counted)
    monkeypatch.setattr(torch, "empty", lambda *a, **named: allocated.append(a) or real_empty(*a, **named))
    seen: list[tuple[int, int]] = []
    images, rows = FilePixels(paths).load(6, lambda done, total: seen.append((done, total)))
    monkeypatch.undo()
    assert sorted(calls) == sorted(paths)
    assert allocated == [((400, 3, 6, 6),)]
    assert rows.tolist() == list(range(400))
    assert seen[-1] == (400, 400)
    assert seen == sorted(seen)
    for index in (0, 7, 399):
        assert np.array_equal(images[index].numpy(), decode(paths[index], 6))


def test_bad_images_stop_or_are_skipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = [save_image(Path(f"{index}.png"), seed=index) for index in range(3)]
    bad = bad_files(Path("bad"))
    paths = [good[0], bad["text"], good[1], bad["cut"], good[2]]
    with pytest.raises(UserError, match=r"cannot read bad/text.jpg: not an image.*2 files of 5.*--skip-bad"):
        FilePixels(paths).load(12)
    images, rows = FilePixels(paths, skip_bad_images=True).load(12)
    assert rows.tolist() == [0, 2, 4]
    assert torch.equal(images, FilePixels(good).load(12)[0])
    labels = torch.tensor([0, 0, 1, 1, 1])
    files = ImageSet(FilePixels(paths, skip_bad_images=True), labels, LabelSpace(["cat", "dog"]))
    images, labels, skipped = load_set(files, 12)
    assert (len(images), labels.tolist(), skipped) == (3, [0, 1, 1], 2)
    with pytest.raises(UserError, match=r"^photos/cat has 1 image; at least 2 are needed to compare$"):
        check_trainable(labels, files.classes, "photos")
    check_trainable(files, files.classes, "photos")
    with pytest.raises(UserError, match="none of the 1 images"):
        FilePixels([bad["cut"]], skip_bad_images=True).load(12)


def test_an_error_while_loading_does_not_wait_for_all_files(tmp_path):
    paths = [save_image(tmp_path / "one.png")] * 500
    with pytest.raises(KeyboardInterrupt):
        FilePixels(paths).load(12, lambda done, total: (_ for _ in ()).throw(KeyboardInterrupt))


def test_own_size_where_all_are_alike(tmp_path):
    alike = [save_image(tmp_path / f"{index}.png", side=9) for index in range(3)]
    assert FilePixels(alike).load(None)[0].shape == (3, 3, 9, 9)
    other = save_image(tmp_path / "other.png", side=10)
    assert common_side([*alike, other]) is None
    with pytest.raises(UserError, match="--image-size"):
        FilePixels([*alike, other]).load(None)
    assert len(FilePixels([]).load(None)[0]) == 0
    with pytest.raises(UserError, match="not 0"):
        FilePixels(alike).load(0)


def test_select_of_files_keeps_order_and_settings(tmp_path):
    chosen = FilePixels([Path("a"), Path("b"), Path("c")], channels=1, skip_bad_images=True).select([2, 0])
    assert chosen.paths == (Path("c"), Path("a"))
    assert (chosen.channels, chosen.skip_bad_images) == (1, True)


def test_too_much_for_the_memory_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 2 * 2**30)
    with pytest.raises(UserError, match=r"20,000 images of 224 x 224 .* 2\.8 GiB .* 2\.0 GiB .*--image-size"):
        FilePixels([Path("nowhere.jpg")] * 20_000).load(224)
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    memory.check_fits(10**9, 3, 224)  # nothing is known: nothing is refused


def test_available_memory_is_plausible():
    available = memory.available_bytes()
    assert available is None or 2**20 < available < 2**50


class TestTensorPixels:
    images = torch.randint(64, 192, (20, 3, 8, 8), dtype=torch.uint8)

    def test_whole_set_is_not_copied(self):
        images, rows = TensorPixels(self.images).load(8)
        assert images is self.images
        assert rows.tolist() == list(range(20))
        assert TensorPixels(self.images).load(None)[0] is self.images

    def test_selections_compose(self):
        chosen = TensorPixels(self.images).select([5, 3, 9, 1]).select([2, 0])
        assert chosen.images is self.images
        assert len(chosen) == 2
        assert torch.equal(chosen.load(8)[0], self.images[[9, 5]])
        assert len(TensorPixels(self.images).select([]).load(4)[0]) == 0

    @pytest.mark.parametrize("size", [4, 16])
    def test_resizing_is_antialiased_and_stays_in_range(self, size, monkeypatch):
        monkeypatch.setattr(pixels, "_IMAGES_PER_RESIZE", 6)
        resized = TensorPixels(self.images).select([4, 2] * 5).load(size)[0]
        assert (resized.dtype, resized.shape) == (torch.uint8, (10, 3, size, size))
        picture = Image.fromarray(self.images[4].permute(1, 2, 0).numpy())
        careful = np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC))
        assert near(resized[0].permute(1, 2, 0).numpy(), careful.astype(float), 2)

    def test_wrong_shapes_are_refused(self):
        with pytest.raises(UserError, match=r"not float32 \[2, 3, 4, 4\]"):
            TensorPixels(torch.zeros(2, 3, 4, 4))
        with pytest.raises(UserError, match=r"\[2, 3, 4, 5\]"):
            TensorPixels(torch.zeros(2, 3, 4, 5, dtype=torch.uint8))
