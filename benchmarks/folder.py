"""How fast image files reach the device, and how much memory that takes: streamed images and a DataLoader.

    python benchmarks/folder.py --images 20000 --size 224 --batch-size 256 --device auto

Makes a folder of JPEG photographs of 500 x 400 pixels, and runs epochs over it without a network. *ours* is
:class:`refilled.data.streamed.Streamed`: the first epoch decodes every file into the cache; the later ones
read it in shuffled order, the last one after the system was asked to forget the file, so that it comes from
the disk. *augmented* adds ``resized-crop-flip`` on the device. *DataLoader* is the loop that one would write
first: Pillow opens, resizes and crops in 2 workers, every epoch anew.

Each row has a process of its own. *anonymous* is the most memory that it allocated itself (RssAnon), *peak*
the most it had in all, with the libraries (VmHWM), *worker* the peak of the largest process that it started.
A row with a quarter of the images shows whether memory grows with the folder.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from refilled.data import Batches, FilePixels
from refilled.data.cache import cache_images
from refilled.data.streamed import Streamed

DISTINCT = 500
WIDTH, HEIGHT = 500, 400


def photograph(seed: int) -> bytes:
    """A JPEG of about 60 kB: colours at several scales, sharp shapes, and a camera's noise."""
    random = np.random.default_rng(seed)
    scene = np.zeros((HEIGHT, WIDTH, 3))
    for cells, strength in ((4, 90), (16, 40), (64, 20)):
        coarse = random.normal(0, strength, (cells, cells, 3)).astype(np.float32)
        layers = [Image.fromarray(coarse[..., channel]) for channel in range(3)]
        scene += np.stack([layer.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for layer in layers], -1)
    image = Image.fromarray((scene + 128).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y, side = random.integers(0, WIDTH), random.integers(0, HEIGHT), random.integers(10, 120)
        draw.ellipse((x, y, x + side, y + side), fill=tuple(random.integers(0, 256, 3).tolist()))
    noisy = np.asarray(image) + random.normal(0, 6, (HEIGHT, WIDTH, 1))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def make_folder(folder: Path, count: int) -> None:
    """Files of which no two are the same: each has its number in a comment, after the first two bytes."""
    with ThreadPoolExecutor() as pool:
        distinct = list(pool.map(photograph, range(min(DISTINCT, count))))
    for number in range(count):
        data, comment = distinct[number % len(distinct)], b"%08d" % number
        marker = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
        (folder / f"{number:06}.jpg").write_bytes(data[:2] + marker + data[2:])


class Files(Dataset):
    """The usual way: open, shorter side to the size, centre crop, tensor."""

    def __init__(self, paths: list[Path], size: int):
        self.paths, self.size = paths, size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as image:
            scale = self.size / min(image.size)
            sides = (round(image.width * scale), round(image.height * scale))
            whole = image.convert("RGB").resize(sides, Image.Resampling.BILINEAR)
        left, top = (sides[0] - self.size) // 2, (sides[1] - self.size) // 2
        crop = whole.crop((left, top, left + self.size, top + self.size))
        return torch.from_numpy(np.asarray(crop).copy()).permute(2, 0, 1).float().div(255)


class Meter:
    """Times epochs and watches the memory."""

    def __init__(self, count: int, device: torch.device):
        self.count, self.device = count, device
        self.anonymous = self.worker = 0.0
        self.speeds: list[float] = []

    def watch(self, *_: int) -> None:
        """Look how much memory this process and its workers have."""
        self.anonymous = max(self.anonymous, megabytes("RssAnon"))
        for task in Path("/proc/self/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                self.worker = max(self.worker, megabytes("VmHWM", child))

    def epoch(self, batches: Iterable[Tensor], since: float | None = None) -> None:
        """Run through an epoch; ``since``: when it began, if not now."""
        start = since or time.perf_counter()
        for _ in batches:
            self.watch()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.speeds.append(self.count / (time.perf_counter() - start))

    def report(self) -> dict[str, object]:
        """All that was measured."""
        memory = {"anonymous": self.anonymous, "peak": megabytes("VmHWM"), "worker": self.worker}
        return {"speeds": self.speeds, **memory}


def megabytes(name: str, process: str = "self") -> float:
    """A line of a process's memory, in MB; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


def measure(kind: str, paths: list[Path], cache: Path, options: argparse.Namespace) -> dict[str, object]:
    """One row, in this process."""
    device = torch.device(options.device)
    torch.zeros(1, device=device)
    meter = Meter(len(paths), device)
    if kind == "DataLoader":
        loader = DataLoader(Files(paths, options.size), options.batch_size, shuffle=True, num_workers=2)
        meter.epoch(batch.to(device) for batch in loader)
        return meter.report()
    start = time.perf_counter()
    source = Streamed(cache_images(FilePixels(paths), options.size, cache, meter.watch)[0], device)
    batches = Batches(
        source, torch.zeros(len(paths), dtype=torch.int64, device=device), options.batch_size,
        "resized-crop-flip",
    )  # fmt: skip
    if kind == "augmented":
        meter.epoch(batch.images for batch in batches.epoch(0))
        return meter.report()
    for number in range(4):
        if number == 3:
            forget(source)
        meter.epoch(raw_epoch(batches, number), since=start if number == 0 else None)
    return meter.report()


def raw_epoch(batches: Batches, number: int) -> Iterator[Tensor]:
    """The bytes of each batch on the device, in shuffled order."""
    return batches.source.stream(batches.plan(number).rows)


def forget(source: Streamed) -> None:
    """Ask the system to drop the cache's file from memory; where it does not, the disk is not measured."""
    os.sync()
    os.posix_fadvise(source.images.pixels.handle, 0, 0, os.POSIX_FADV_DONTNEED)


def in_process(kind: str, folder: Path, count: int, cache: Path) -> dict[str, object]:
    """One row, in a process of its own."""
    command = [sys.executable, *sys.argv, "--measure", kind, str(folder), str(count), str(cache)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def parse() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", type=Path, help="where files are made, for a while (default: temporary)")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    return options


def main() -> None:
    """Make the folder, measure, print the table."""
    options = parse()
    if options.measure:
        kind, folder, count, cache = options.measure
        paths = sorted(Path(folder).iterdir())[: int(count)]
        print(json.dumps(measure(kind, paths, Path(cache), options)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        photos, cache = Path(name) / "photos", Path(name) / "cache"
        photos.mkdir()
        make_folder(photos, options.images)
        total = sum(path.stat().st_size for path in photos.iterdir())
        cores = len(os.sched_getaffinity(0))
        print(
            f"{options.images:,} files of {WIDTH} x {HEIGHT}, {total / options.images / 1000:.0f} kB each, to"
        )
        print(f"{options.size} pixels; batches of {options.batch_size} on {options.device}; {cores} cores\n")
        print("| | images | first epoch | second | third | from disk | second : first | memory (MB) |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
        rows = [("ours", options.images // 4, "small"), ("ours", options.images, "whole")]
        rows += [("augmented", options.images, "whole"), ("DataLoader", options.images, "")]
        for kind, count, place in rows:
            found = in_process(kind, photos, count, cache / place)
            speeds = [f"{speed:,.0f}/s" for speed in found["speeds"]]  # type: ignore[attr-defined]
            if kind == "augmented":
                speeds.insert(0, "")
            speeds += [""] * (4 - len(speeds))
            ratio = ""
            if kind == "ours":
                ratio = f"{found['speeds'][1] / found['speeds'][0]:.1f}"  # type: ignore[index]
            memory = ", ".join(f"{name} {found[name]:.0f}" for name in ("anonymous", "peak", "worker"))
            print(f"| {kind} | {count:,} | {' | '.join(speeds)} | {ratio} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
