// What pages with maps share: numbers out of letters, maps drawn on pictures, numbers in words.
"use strict";

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const floats = (text) => new Float32Array(bytes(text).buffer);
/** Numbers of 16 bits, times their scale. */
function halves({ scale, values }) {
  return Float32Array.from(new Uint16Array(bytes(values).buffer), (half) => {
    const [exponent, fraction] = [(half >> 10) & 31, half & 1023];
    const size = exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction;
    return (half >> 15 ? -size : size) * scale;
  });
}
const byId = (id) => document.getElementById(id);

/** The scale is centred at zero; the strongest 0.5 % of the values saturate. */
function limitOf(values) {
  const sizes = Float32Array.from(values, Math.abs).sort();
  return sizes[Math.floor(0.995 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
}

function smoothed(values, width, height, radius) {
  if (!radius) return values;
  const kernel = Array.from({ length: 2 * radius + 1 }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * (i + 1)) / (2 * radius + 2)));
  const total = kernel.reduce((a, b) => a + b);
  const along = (source, count, lines, step, across) => {
    const out = new Float32Array(source.length);
    for (let line = 0; line < lines; line++)
      for (let i = 0; i < count; i++) {
        let sum = 0;
        for (let k = Math.max(-radius, -i); k <= Math.min(radius, count - 1 - i); k++)
          sum += kernel[k + radius] * source[line * across + (i + k) * step];
        out[line * across + i * step] = sum / total;
      }
    return out;
  };
  return along(along(values, width, height, 1, width), height, width, width, 1);
}

/** Where the colour of a value is, among 256 colours of three bytes. */
const colour = (value, scale) => 3 * Math.max(0, Math.min(255, Math.floor(128 * (value / scale + 1))));

/** A picture (its bytes), dimmed, with relevance on it. */
function painted(values, picture, width, height, { limit, colours, opacity, coloured }) {
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const strength = opacity * Math.min(1, Math.abs(values[i]) / limit);
    const at = colour(values[i], limit);
    const grey = (picture[4 * i] + picture[4 * i + 1] + picture[4 * i + 2]) / 3;
    for (let c = 0; c < 3; c++) {
      // Dimmed, so that relevance is seen on it.
      const ground = coloured ? 71 + 0.27 * picture[4 * i + c] + 0.33 * grey : 102 + 0.6 * grey;
      image.data[4 * i + c] = (1 - strength) * ground + strength * colours[at + c];
    }
    image.data[4 * i + 3] = 255;
  }
  return image;
}

const number = (value) => (Math.abs(value) >= 0.1 ? value.toFixed(2) : value.toPrecision(2));
const minus = (text) => text.replace("-", "\u2212");
const signed = (value) => (value > 0 ? "+" : "") + number(value);
const percent = (part) => (Math.abs(part) >= 0.1 || part === 0 ? Math.round(100 * part) : (100 * part).toPrecision(2)) + " %";

/** Tells the page that this one is shown in how high it is. */
function tellHeight() {
  if (window.parent === window || window.origin === "null") return;
  new ResizeObserver(() => {
    const { offsetHeight, offsetWidth } = document.documentElement;
    // Behind another tab a page has no size.
    if (offsetWidth) window.parent.postMessage({ hilrp: "height", height: offsetHeight }, window.origin);
  }).observe(document.documentElement);
}
