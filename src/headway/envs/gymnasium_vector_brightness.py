"""What the bytes of a picture mean: 0 is dark, 255 is bright, and a network sees 0..1."""

BRIGHTEST = 255.0
