"""Images: small black and white pictures, drawn from noisy averages, and shown as text."""

import numpy as np
import pandas as pd

from clustmix import DPCDA, ImageColumns, Label, Schema

SIDE = 8

# 4,000 made-up pictures of a bar, across or down, with some pixels flipped.
rng = np.random.default_rng(2)
across = rng.random(4_000) < 0.5
bars = np.zeros((4_000, SIDE, SIDE), dtype=bool)
for picture, is_across, place in zip(bars, across, rng.integers(2, SIDE - 3, 4_000), strict=True):
    picture[place : place + 2] = is_across
    picture[:, place : place + 2] |= not is_across
bars ^= rng.random(bars.shape) < 0.02

# Pixels are columns pixel_ROW_COLUMN of whole numbers from 0 to 255; each picture is one person's.
schema = Schema(
    image=ImageColumns(height=SIDE, width=SIDE, gray_levels=2, threshold=128),
    label=Label(name="bar", levels={"across": (), "down": ()}),
)
pictures = pd.DataFrame(bars.reshape(-1, SIDE**2) * 255, columns=list(schema.column_names))
pictures["bar"] = np.where(across, "across", "down")

model = DPCDA(
    schema,
    epsilon=4.0,
    delta=1e-6,
    declared_patients=4_000,
    order_of_mixture=64,
)
model.fit(pictures)
for level in ("across", "down"):
    pixels = model.sample(200, where={"bar": level}).drop(columns="bar").to_numpy()
    mean = pixels.mean(axis=0).reshape(SIDE, SIDE)
    print(f"mean of 200 synthetic pictures of a bar {level}:")
    for row in mean:
        print("  " + "".join(" .:*#"[min(int(value / 52), 4)] for value in row))
print(repr(model.guarantee_))
