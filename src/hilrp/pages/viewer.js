// The map of one explanation: drawn, smoothed, and read pixel by pixel, all in this page.

const data = JSON.parse(document.getElementById("data").textContent);

const { width, height } = data;
const relevance = floats(data.map);
const colours = bytes(data.colours);
const region = bytes(data.region);
const truth = data.truth ? bytes(data.truth) : null;
const canvas = byId("view");
const sheet = document.createElement("canvas");
[sheet.width, sheet.height] = [width, height];
const zoom = Math.max(1, Math.round(1120 / width));
[canvas.width, canvas.height] = [width * zoom, height * zoom];
let picture = null;
let shown = relevance;
let limit = 1;
let box = null;

const kept = (value) => (value > 0 ? byId("positive").checked : byId("negative").checked) ? value : 0;

function draw() {
  if (!picture) return;
  const opacity = byId("opacity").value / 100;
  const image = painted(shown.map(kept), picture, width, height, { limit, colours, opacity, coloured: byId("coloured").checked });
  sheet.getContext("2d").putImageData(image, 0, 0);
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = byId("smoothing").value > 0;
  pen.drawImage(sheet, 0, 0, canvas.width, canvas.height);
  if (truth && byId("true").checked) drawLine(pen, truth, ["#ffffff", "#111111"]);
  // A rectangle is spoken of instead.
  if (!box && byId("around").checked) drawLine(pen, region, ["#111111", "#ffffff"]);
  if (box) {
    const [left, top, right, bottom] = box.map((v) => v * zoom);
    pen.lineWidth = 3;
    pen.strokeStyle = "#000000";
    pen.strokeRect(left, top, right - left, bottom - top);
    pen.lineWidth = 1.5;
    pen.strokeStyle = "#ffffff";
    pen.strokeRect(left, top, right - left, bottom - top);
  }
}

/** A line around a region, between the centres of its pixels and of those outside. */
function drawLine(pen, mask, [below, above]) {
  const inside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && mask[y * width + x] === 1;
  pen.beginPath();
  for (let y = -1; y < height; y++)
    for (let x = -1; x < width; x++) {
      const corners = [inside(x, y), inside(x + 1, y), inside(x + 1, y + 1), inside(x, y + 1)];
      const edges = [[x + 1, y + 0.5], [x + 1.5, y + 1], [x + 1, y + 1.5], [x + 0.5, y + 1]];
      const crossed = edges.filter((_, i) => corners[i] !== corners[(i + 1) % 4]);
      crossed.forEach(([across, down], i) => pen[i % 2 ? "lineTo" : "moveTo"](across * zoom, down * zoom));
    }
  for (const [colourOf, thickness] of [[below, 9], [above, 4]]) {
    pen.strokeStyle = colourOf;
    pen.lineWidth = thickness;
    pen.stroke();
  }
}

// What a place carries: always of the map itself, never of what is smoothed for the eye. ----------------------------

function sums(left, top, right, bottom) {
  let [positive, negative] = [0, 0];
  for (let y = top; y < bottom; y++)
    for (let x = left; x < right; x++) {
      const value = relevance[y * width + x];
      if (value > 0) positive += value; else negative += value;
    }
  return { positive, negative };
}

const whole = sums(0, 0, width, height);

// How sure it is: the spread of the pairs of chains. Pixels depend on their neighbours, so that the error of a region
// is that of each pair's own sum.
const errors = data.errors && { ...data.errors, apart: halves(data.errors.apart), pixels: halves(data.errors.pixels) };

/** How far the sum of each pair over a rectangle is from their mean; a block that is cut counts with its part. */
function spread([left, top, right, bottom]) {
  const { pairs, block, rows, columns, apart } = errors;
  const part = (i, low, high, most) =>
    (Math.min(high, (i + 1) * block) - Math.max(low, i * block)) / (Math.min(most, (i + 1) * block) - i * block);
  const found = new Array(pairs).fill(0);
  for (let y = Math.floor(top / block); y * block < bottom; y++)
    for (let x = Math.floor(left / block); x * block < right; x++) {
      const weight = part(y, top, bottom, height) * part(x, left, right, width);
      for (let pair = 0; pair < pairs; pair++) found[pair] += weight * apart[(pair * rows + y) * columns + x];
    }
  return found;
}

/** The standard error of what a rectangle holds; null where it isn't known. */
function errorOf(rectangle) {
  if (!errors) return null;
  const found = spread(rectangle);
  const mean = found.reduce((a, b) => a + b) / found.length;
  const square = found.reduce((total, value) => total + (value - mean) ** 2, 0);
  return Math.sqrt(square / (found.length - 1) / found.length);
}

const fixed = (value, digits) => minus((Number(value.toFixed(digits)) + 0).toFixed(digits));
/** A number and its error, down to the first digit of the error. */
function give(value, error, unit = "") {
  const digits = error > 0 ? Math.min(20, Math.max(0, -Math.floor(Math.log10(error)))) : 0;
  return `${fixed(value, digits)}${unit} \u00b1 ${fixed(error, digits)}${unit}`;
}
const wholePercent = (part) => minus(`${Math.round(100 * part) + 0} %`);
/** In as many digits as the error leaves, as Explanation.region says it. */
function sure(value, error) {
  if (error === null) return wholePercent(value);
  const digits = [0, 1, 2].find((d) => 100 * error >= 0.95 * 10 ** -d) ?? 0;
  return `${fixed(100 * value, digits)} % \u00b1 ${fixed(100 * error, digits)} %`;
}
// A part of a score below zero would have the wrong sign; a part of a difference has the right one.
const parts = data.shares;
const share = (value, error, words) => words(value / data.explained, error === null ? null : error / Math.abs(data.explained));
const ofWhole = (value, error, words) => (parts ? ` (${share(value, error, words)} of ${data.whole})` : "");
const relevanceOf = (value, error) => (error === null ? minus(signed(value)) : (value > 0 ? "+" : "") + give(value, error));
const finePercent = (part, error) => (error === null ? minus(percent(part)) : give(100 * part, 100 * error, " %"));
const beside = parts ? "" : `, where ${data.whole} is ${minus(number(data.explained))}`;

function interval(value, error) {
  if (error === null || !parts) return "";
  const ends = [-1, 1].map((side) => (value + side * errors.reach * error) / data.explained).sort((a, b) => a - b);
  return ` ${wholePercent(errors.level)} interval: ${ends.map(wholePercent).join(" to ")}.`;
}

function told() {
  if (!box) return data.hint;
  const [left, top, right, bottom] = box;
  const { positive, negative } = sums(left, top, right, bottom);
  const [total, error] = [positive + negative, errorOf(box)];
  const speaks = whole.positive ? `<b>${percent(positive / whole.positive)}</b> of the image\u2019s evidence for it` : "none of the evidence for it";
  const against = whole.negative ? ` and ${percent(negative / whole.negative)} of the evidence against it` : "";
  const area = ((right - left) * (bottom - top)) / (width * height);
  return `This region holds ${speaks}${against}. Together ${relevanceOf(total, error)}${ofWhole(total, error, sure)}${beside}, on ${percent(area)} of the picture.${interval(total, error)}`;
}

/** What the sentence above the picture says of a region: of the one around which the line is, or of the rectangle. */
function heldBy() {
  if (!box || !parts) return data.held;
  const { positive, negative } = sums(...box);
  return `${share(positive + negative, errorOf(box), sure)} comes from the marked rectangle`;
}

function place(event) {
  const frame = canvas.getBoundingClientRect();
  const clamp = (value, most) => Math.max(0, Math.min(most - 1, Math.floor(value)));
  return [clamp(((event.clientX - frame.left) / frame.width) * width, width), clamp(((event.clientY - frame.top) / frame.height) * height, height)];
}

function between([x0, y0], [x1, y1]) {
  return [Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1) + 1, Math.max(y0, y1) + 1];
}

function choose(next) {
  box = next;
  byId("region").innerHTML = told();
  byId("region").classList.toggle("hint", !box);
  byId("held").textContent = heldBy();
  byId("ask").hidden = !(box && data.regions && window.parent !== window);
  draw();
}

let start = null;
canvas.addEventListener("pointerdown", (event) => {
  start = place(event);
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = place(event);
  const value = relevance[y * width + x];
  const error = errors ? errors.pixels[y * width + x] : null;
  byId("pixel").textContent = `column ${x}, row ${y}: ${relevanceOf(value, error)}${ofWhole(value, error, finePercent)}`;
  if (start) choose(between(start, [x, y]));
});
canvas.addEventListener("pointerup", (event) => {
  const [x, y] = place(event);
  if (start && start[0] === x && start[1] === y) choose(null);
  start = null;
});
canvas.addEventListener("pointerleave", () => { byId("pixel").innerHTML = "&nbsp;"; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") choose(null); });

// ------------------------------------------------------------------------------------------------------------------

for (const small of document.querySelectorAll("canvas.stage")) {
  const stage = data.stages[small.dataset.stage];
  const values = floats(stage.map);
  [small.width, small.height] = [stage.width, stage.height];
  const image = new ImageData(stage.width, stage.height);
  const own = limitOf(values);
  values.forEach((value, i) => {
    const at = colour(value, own);
    image.data.set([colours[at], colours[at + 1], colours[at + 2], 255], 4 * i);
  });
  small.getContext("2d").putImageData(image, 0, 0);
}

byId("smoothing").addEventListener("input", () => {
  const radius = Number(byId("smoothing").value);
  byId("radius").textContent = radius ? `${radius} pixels` : "off";
  shown = smoothed(relevance, width, height, radius);
  limit = limitOf(shown);
  [byId("low").textContent, byId("high").textContent] = [minus(number(-limit)), number(limit)];
  draw();
});
for (const id of ["opacity", "positive", "negative", "coloured", "around", "true"]) byId(id)?.addEventListener("input", draw);
byId("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.download = `${data.name}-view.png`;
  link.href = canvas.toDataURL("image/png");
  link.click();
});
byId("ask").addEventListener("click", () => window.parent.postMessage({ hilrp: "region", box: box.join(", ") }, window.origin === "null" ? "*" : window.origin));

const original = new Image();
original.onload = () => {
  const paper = sheet.getContext("2d", { willReadFrequently: true });
  paper.drawImage(original, 0, 0);
  picture = paper.getImageData(0, 0, width, height).data;
  byId("smoothing").dispatchEvent(new Event("input"));
  choose(null);
};
original.src = data.picture;

tellHeight();
