import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import bad_files, save_image
from PIL import Image

import refilled
from refilled.data import cache, decode_process, decoders, memory, pixel_file
from refilled.data.cache import cache_images
from refilled.data.decode import decode
from refilled.data.decode_process import DecodeProcess
from refilled.data.pixels import FilePixels
from refilled.errors import UserError

SOURCE = str(Path(refilled.__file__).parents[1])
SIZE = 16


@pytest.fixture
def photos(tmp_path):
    """``photos(5)`` makes five image files."""

    def make(count: int, folder: str = "photos") -> list[Path]:
        return [save_image(tmp_path / folder / f"{n}.png", side=20, seed=n) for n in range(count)]

    return make


@pytest.fixture
def decoded(monkeypatch):
    """Names of the files that are decoded, in threads."""
    names: list[str] = []
    real = decoders.decode_files

    def counted(target, jobs, size, channels):
        names.extend(Path(path).name for path, _, _ in jobs)
        return real(target, jobs, size, channels)

    monkeypatch.setattr(cache, "decode_files", counted)
    monkeypatch.setattr(decoders, "worker_count", lambda: 2)
    return names


@pytest.fixture
def in_processes(monkeypatch):
    monkeypatch.setattr(decoders, "worker_count", lambda: 2)
    monkeypatch.setattr(decoders, "_JOBS_WORTH_A_PROCESS", 1)
    monkeypatch.setattr(decoders, "_JOBS_PER_TASK", 4)


def same(files: FilePixels, folder: Path, size: int = SIZE) -> bool:
    images, rows = cache_images(files, size, folder)
    expected, expected_rows = files.load(size)
    return torch.equal(images.load(), expected) and torch.equal(rows, expected_rows)


def stop_after(count: int):
    def progress(done, total):
        if done >= count:
            raise KeyboardInterrupt

    return progress


class TestWhatIsThere:
    def test_files_are_decoded_once(self, photos, tmp_path, decoded):
        files = FilePixels(photos(70))
        seen: list[tuple[int, int]] = []
        images, rows = cache_images(files, SIZE, tmp_path / "cache", lambda *at: seen.append(at))
        assert torch.equal(images.load(), files.load(SIZE)[0])
        assert rows.tolist() == list(range(70))
        assert images.shape == (70, 3, SIZE, SIZE)
        assert seen == sorted(seen)
        assert seen[-1] == (70, 70)
        assert len(decoded) == 70
        seen.clear()
        again, _ = cache_images(files, SIZE, tmp_path / "cache", lambda *at: seen.append(at))
        assert torch.equal(again.load(), images.load())
        assert len(decoded) == 70
        assert seen == [(70, 70)]

    def test_any_choice_of_images_finds_them(self, photos, tmp_path, decoded):
        files = FilePixels(photos(9))
        cache_images(files, SIZE, tmp_path)
        assert same(files.select([7, 2, 2, 5]), tmp_path)
        assert len(decoded) == 9
        (tmp_path / "photos" / "9.png").write_bytes(files.paths[0].read_bytes())
        assert same(FilePixels([*files.paths, tmp_path / "photos" / "9.png"]), tmp_path)
        assert decoded[9:] == ["9.png"]

    def test_by_whatever_path_a_folder_is_reached(self, photos, tmp_path, decoded, monkeypatch):
        paths = photos(3)
        cache_images(FilePixels(paths), SIZE, tmp_path)
        (tmp_path / "link").symlink_to("photos")
        monkeypatch.chdir(tmp_path)
        assert same(FilePixels([Path("photos/0.png"), tmp_path / "link" / "1.png"]), tmp_path)
        assert len(decoded) == 3

    def test_one_file_as_several_rows_is_decoded_once(self, photos, tmp_path, decoded):
        (path,) = photos(1)
        assert same(FilePixels([path] * 5), tmp_path)
        assert decoded == ["0.png"]

    def test_sets_and_sizes_live_side_by_side(self, photos, tmp_path):
        some, others = FilePixels(photos(4)), FilePixels(photos(6, "others"))
        gray = FilePixels(some.paths, channels=1)
        for _ in range(2):
            for files, size in ((some, SIZE), (others, SIZE), (some, 8), (gray, SIZE)):
                assert same(files, tmp_path / "cache", size)
        kinds = {path.name for path in (tmp_path / "cache").glob("*.pixels")}
        assert kinds == {"3x16x16.pixels", "3x8x8.pixels", "1x16x16.pixels"}

    def test_boxes(self, photos, tmp_path, decoded):
        paths = photos(3)
        boxes = [(0, 0, 9, 9), None, (5, 5, 20, 18)]
        assert same(FilePixels(paths, boxes=boxes), tmp_path)
        assert same(FilePixels(paths), tmp_path)
        assert same(FilePixels(paths, boxes=boxes), tmp_path)
        assert decoded == ["0.png", "1.png", "2.png", "0.png", "2.png"]

    def test_no_files_at_all(self, tmp_path):
        images, rows = cache_images(FilePixels([]), SIZE, tmp_path)
        assert images.load().shape == (0, 3, SIZE, SIZE)
        assert len(rows) == 0

    def test_a_changed_file_is_decoded_again_and_no_other(self, photos, tmp_path, decoded):
        files = FilePixels(photos(6))
        before, _ = cache_images(files, SIZE, tmp_path)
        old = before.load()
        save_image(files.paths[2], side=24, seed=99)
        assert same(files, tmp_path)
        assert decoded[6:] == ["2.png"]
        assert torch.equal(before.load(), old), "who has it open keeps what was there"
        stat = files.paths[4].stat()
        os.utime(files.paths[4], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        assert same(files, tmp_path)
        assert decoded[7:] == ["4.png"]

    def test_it_can_be_read_from_a_folder_without_permission_to_write(self, photos, tmp_path, monkeypatch):
        files = FilePixels(photos(3))
        cache_images(files, SIZE, tmp_path)
        monkeypatch.setattr(cache, "locked", None)
        assert same(files, tmp_path)


class TestDamage:
    @pytest.mark.parametrize("kind", ["pixels", "index", "lock"])
    @pytest.mark.parametrize("harm", ["removed", "cut", "emptied", "other"])
    def test_is_not_trusted(self, photos, tmp_path, harm, kind):
        files = FilePixels(photos(5))
        before, _ = cache_images(files, SIZE, tmp_path)
        old = before.load()
        harmed = tmp_path / f"3x16x16.{kind}"
        content = harmed.read_bytes()
        harmed.unlink()  # the process above keeps its file
        changed = {"cut": content[:-3], "emptied": b"", "other": b"something else" + content[14:]}
        if harm != "removed":
            harmed.write_bytes(changed[harm])
        assert same(files, tmp_path)
        assert same(files, tmp_path)
        assert torch.equal(before.load(), old)

    def test_of_files_that_belong_to_others(self, photos, tmp_path):
        one, two = FilePixels(photos(3)), FilePixels(photos(5, "others"))
        cache_images(one, SIZE, tmp_path / "a")
        cache_images(two, SIZE, tmp_path / "b")
        (tmp_path / "b" / "3x16x16.pixels").replace(tmp_path / "a" / "3x16x16.pixels")
        assert same(one, tmp_path / "a")

    def test_another_pillow_decodes_again(self, photos, tmp_path, decoded, monkeypatch):
        files = FilePixels(photos(3))
        cache_images(files, SIZE, tmp_path)
        monkeypatch.setattr(pixel_file.PIL, "__version__", "0.1")
        assert same(files, tmp_path)
        assert len(decoded) == 6

    def test_while_it_is_read_is_said(self, photos, tmp_path):
        images, _ = cache_images(FilePixels(photos(3)), SIZE, tmp_path)
        os.truncate(tmp_path / "3x16x16.pixels", 5000)
        with pytest.raises(UserError, match=r"3x16x16\.pixels was cut while it was used"):
            images.load()


class TestInterruption:
    @pytest.mark.parametrize("how", ["threads", "processes"])
    def test_what_is_decoded_is_kept(self, photos, tmp_path, monkeypatch, decoded, how):
        monkeypatch.setattr(decoders, "_JOBS_PER_TASK", 4)
        monkeypatch.setattr(decoders, "_JOBS_WORTH_A_PROCESS", 1 if how == "processes" else 10**9)
        files = FilePixels(photos(40))
        with pytest.raises(KeyboardInterrupt):
            cache_images(files, SIZE, tmp_path, stop_after(16))
        at_start: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            cache_images(files, SIZE, tmp_path, lambda *at: at_start.append(at[0]) or stop_after(24)(*at))
        assert at_start[:2] == [16, 20]
        assert len(decoded) == 40 + 24
        assert same(files, tmp_path)
        assert len(decoded) == 40 + 24 + 16

    def test_a_killed_process_loses_little_and_spoils_nothing(self, photos, tmp_path, decoded):
        files = FilePixels(photos(40))
        code = f"""
            import os
            from pathlib import Path
            from refilled.data import cache, decoders
            from refilled.data.pixels import FilePixels
            cache._SECONDS_BETWEEN_SAVES, decoders._JOBS_PER_TASK = -1, 4
            paths = [Path({str(files.paths[0].parent)!r}) / f"{{n}}.png" for n in range(40)]
            killed = lambda done, total: done >= 24 and os._exit(7)
            cache.cache_images(FilePixels(paths), {SIZE}, Path({str(tmp_path)!r}), killed)
        """
        assert run_python(code).wait() == 7
        assert same(files, tmp_path)
        assert 0 < len(decoded) <= 20

    def test_nothing_is_written_after_it_was_stopped(self, photos, tmp_path, in_processes):
        paths = photos(40)
        target = tmp_path / "target"
        target.write_bytes(b"")
        jobs = [(str(path), None, 768 * n) for n, path in enumerate(paths)]
        before = set(threading.enumerate())
        with closing(decoders.decode_files(target, jobs, SIZE, 3)) as results:
            next(results)
        content = target.read_bytes()
        assert set(threading.enumerate()) <= before
        time.sleep(0.1)
        assert target.read_bytes() == content


class TestBadImages:
    @pytest.mark.parametrize("how", ["threads", "processes"])
    def test_stop_or_are_skipped_as_in_memory(self, tmp_path, monkeypatch, how):
        monkeypatch.setattr(decoders, "_JOBS_WORTH_A_PROCESS", 1 if how == "processes" else 10**9)
        monkeypatch.chdir(tmp_path)
        good = [save_image(Path(f"{n}.png"), seed=n) for n in range(3)]
        bad = bad_files(Path("bad"))
        paths = [good[0], bad["text"], good[1], bad["cut"], Path("missing.png"), good[2], bad["empty"]]
        for _ in range(2):
            with pytest.raises(UserError) as in_memory:
                FilePixels(paths).load(12)
            with pytest.raises(UserError) as cached:
                cache_images(FilePixels(paths), 12, tmp_path)
            assert str(cached.value) == str(in_memory.value)
            assert same(FilePixels(paths, skip_bad_images=True), tmp_path, 12)
        with pytest.raises(UserError, match=r"none of the 2 images can be read; bad/text\.jpg: not an"):
            cache_images(FilePixels(paths, skip_bad_images=True).select([1, 3]), 12, tmp_path)
        save_image(Path("missing.png"))
        assert cache_images(FilePixels(paths, skip_bad_images=True), 12, tmp_path)[1].tolist() == [0, 2, 4, 5]

    def test_one_that_crashes_its_decoder(self, photos, tmp_path, in_processes, monkeypatch):
        paths = photos(12)
        crashing = tmp_path / "crashing.py"
        real = Path(decode_process.decode.__file__).read_text(encoding="utf-8")
        crash = """
import os
whole = decode
def decode(path, *rest):
    return os.abort() if path.endswith("/5.png") else whole(path, *rest)
"""
        crashing.write_text(real + crash, encoding="utf-8")
        monkeypatch.setattr(decode_process.decode, "__file__", str(crashing))
        reason = r"5\.png: the process that decodes it ends \(signal 6\) \(1 file of 12"
        with pytest.raises(UserError, match=reason):
            cache_images(FilePixels(paths), SIZE, tmp_path)
        images, rows = cache_images(FilePixels(paths, skip_bad_images=True), SIZE, tmp_path)
        assert rows.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        assert np.array_equal(images.load()[5].numpy(), decode(paths[6], SIZE))


class TestProcesses:
    def test_give_what_threads_give(self, photos, tmp_path, in_processes, monkeypatch):
        files = FilePixels(photos(30))
        assert same(files, tmp_path / "a")
        monkeypatch.setattr(decoders, "_JOBS_WORTH_A_PROCESS", 10**9)
        assert same(files, tmp_path / "b")
        read = [(tmp_path / name / "3x16x16.pixels").read_bytes()[4096:] for name in "ab"]
        assert read[0] == read[1]

    def test_do_not_import_torch(self, tmp_path):
        (tmp_path / "target").touch()
        process = DecodeProcess(tmp_path / "target", SIZE, 3)
        process.check_ready()
        maps = Path(f"/proc/{process._process.pid}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text(encoding="utf-8")
            assert "_imaging" in maps.read_text(encoding="utf-8")
        process.stop()

    @pytest.mark.parametrize("executable", ["", "/nowhere/python", "/bin/false"])
    def test_where_there_are_none_threads_decode(
        self, photos, tmp_path, in_processes, monkeypatch, executable
    ):
        monkeypatch.setattr(decode_process.sys, "executable", executable or None)
        assert same(FilePixels(photos(10)), tmp_path)

    def test_names_that_are_no_text(self, photos, tmp_path, in_processes):
        paths = photos(4)
        odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n\xc3\xa9.png"))
        try:
            odd.write_bytes(paths[0].read_bytes())
        except OSError:
            pytest.skip("this disk takes no such names")
        assert same(FilePixels([*paths, odd]), tmp_path)


class TestTwoAtOnce:
    def test_the_second_waits_and_finds_everything(self, photos, tmp_path, decoded):
        files = FilePixels(photos(40))
        code = f"""
            import time
            from pathlib import Path
            from refilled.data import cache, decoders
            from refilled.data.pixels import FilePixels
            cache._SECONDS_BETWEEN_SAVES, decoders._JOBS_PER_TASK = -1, 4
            paths = [Path({str(files.paths[0].parent)!r}) / f"{{n}}.png" for n in range(40)]
            def slowly(done, total):
                Path({str(tmp_path / "begun")!r}).touch()
                time.sleep(0.1)
            cache.cache_images(FilePixels(paths), {SIZE}, Path({str(tmp_path)!r}), slowly)
        """
        other = run_python(code)
        while not (tmp_path / "begun").exists():
            assert other.poll() is None
            time.sleep(0.02)
        seen = []
        images, _ = cache_images(files, SIZE, tmp_path, lambda done, total: seen.append(done))
        assert other.wait() == 0
        assert torch.equal(images.load(), files.load(SIZE)[0])
        assert not decoded
        assert seen == sorted(seen)
        assert any(0 < done < 40 for done in seen)
        assert seen[-1] == 40

    def test_threads_of_one_process(self, photos, tmp_path):
        paths = photos(40)
        sets = [FilePixels(paths[start : start + 25]) for start in (0, 5, 15, 10)]
        results: list[bool] = []
        work = [lambda files=files: results.append(same(files, tmp_path)) for files in sets]
        threads = [threading.Thread(target=one) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 4
        assert (tmp_path / "3x16x16.pixels").stat().st_size == 4096 + 40 * 3 * SIZE**2


class TestRefusals:
    def test_too_little_room_on_the_disk(self, photos, tmp_path, monkeypatch):
        files = FilePixels(photos(2))
        usage = type("usage", (), {"free": 1000})
        monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage)
        said = (
            r"2 decoded images of 16 x 16 .* 0 MiB are free there; use a smaller --image-size, or .*--cache"
        )
        with pytest.raises(UserError, match=said):
            cache_images(files, SIZE, tmp_path / "run" / "cache")
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("how", ["threads", "processes"])
    def test_a_disk_that_is_full(self, photos, tmp_path, monkeypatch, how):
        monkeypatch.setattr(decoders, "_JOBS_WORTH_A_PROCESS", 1 if how == "processes" else 10**9)
        jobs = [(str(path), None, 0) for path in photos(2)]
        with pytest.raises(UserError, match="cannot write to /dev/full: no space left on device"):
            list(decoders.decode_files(Path("/dev/full"), jobs, SIZE, 3))

    def test_a_place_that_cannot_be_written_to(self, photos, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match=r"cannot write the cache .*file: .*; choose another .*--cache"):
            cache_images(FilePixels(photos(2)), SIZE, tmp_path / "file")

    def test_more_than_memory_holds_where_it_is_loaded(self, photos, tmp_path, monkeypatch):
        images, _ = cache_images(FilePixels(photos(2)), SIZE, tmp_path)
        monkeypatch.setattr(memory, "available_bytes", lambda: 100)
        with pytest.raises(UserError, match="use --pixels stream, a smaller --image-size"):
            images.load()

    def test_a_size_that_makes_no_sense(self, photos, tmp_path):
        with pytest.raises(UserError, match="not 0"):
            cache_images(FilePixels(photos(2)), 0, tmp_path)


def test_photographs_in_colour_and_gray(tmp_path):
    smooth = np.linspace(0, 255, 90 * 60 * 3).reshape(60, 90, 3).astype(np.uint8)
    paths = [tmp_path / "photo.jpg", tmp_path / "gray.png"]
    Image.fromarray(smooth).save(paths[0])
    Image.fromarray(smooth).convert("L").save(paths[1])
    assert same(FilePixels(paths), tmp_path)
    assert same(FilePixels(paths, channels=1), tmp_path)


def run_python(code: str) -> subprocess.Popen:
    lines = [line[12:] for line in code.splitlines()]
    return subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)],
        env=os.environ | {"PYTHONPATH": SOURCE},
        stderr=subprocess.DEVNULL,
    )
