// The map of a volume, a video, bands or a sound: slices with sliders, and curves along them, all in this page.

const data = JSON.parse(document.getElementById("data").textContent);

const [depth, height, width] = data.shape;
const sides = data.shape;
const steps = [height * width, width, 1];
const relevance = floats(data.map);
const picture = bytes(data.picture);
const region = bytes(data.region);
const colours = bytes(data.colours);
const at = [...data.start];
let shown = relevance;
let limit = 1;

const kept = (value) => (value > 0 ? byId("positive").checked : byId("negative").checked) ? value : 0;
const others = (axis) => [0, 1, 2].filter((each) => each !== axis);
const share = (value) => (data.shares ? ` (${minus(percent(value / data.explained))} of ${data.whole})` : "");

// Slices ------------------------------------------------------------------------------------------------------------

const views = data.views.map((view, i) => ({ ...view, canvas: byId(`view${i}`), slider: byId(`slider${i}`) }));

/** Where each pixel of a slice is in the arrays, row by row as it is seen. */
function places(view, index) {
  const [down, across] = others(view.axis);
  const found = new Int32Array(sides[down] * sides[across]);
  for (let y = 0; y < sides[down]; y++)
    for (let x = 0; x < sides[across]; x++)
      found[y * sides[across] + x] = index * steps[view.axis] + (view.upside ? sides[down] - 1 - y : y) * steps[down] + x * steps[across];
  return found;
}

function draw(view) {
  const [down, across] = others(view.axis);
  const [rows, columns] = [sides[down], sides[across]];
  const index = view.slider ? at[view.axis] : view.index;
  const where = places(view, index);
  const ground = new Uint8Array(4 * where.length);
  for (let i = 0; i < where.length; i++)
    for (let c = 0; c < 3; c++) ground[4 * i + c] = data.coloured ? picture[3 * where[i] + c] : picture[where[i]];
  const values = Float32Array.from(where, (place) => kept(shown[place]));
  const opacity = byId("opacity").value / 100;
  const image = painted(values, ground, columns, rows, { limit, colours, opacity, coloured: data.coloured });
  const sheet = document.createElement("canvas");
  [sheet.width, sheet.height] = [columns, rows];
  sheet.getContext("2d").putImageData(image, 0, 0);
  const { canvas } = view;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = byId("smoothing").value > 0;
  pen.drawImage(sheet, 0, 0, canvas.width, canvas.height);
  const [high, wide] = [canvas.height / rows, canvas.width / columns];
  if (byId("around").checked) around(pen, where, rows, columns, high, wide);
  if (data.crossed) {
    pen.lineWidth = 1;
    pen.strokeStyle = "rgba(255, 255, 255, 0.75)";
    const row = view.upside ? sides[down] - 1 - at[down] : at[down];
    pen.beginPath();
    pen.moveTo(0, (row + 0.5) * high);
    pen.lineTo(canvas.width, (row + 0.5) * high);
    pen.moveTo((at[across] + 0.5) * wide, 0);
    pen.lineTo((at[across] + 0.5) * wide, canvas.height);
    pen.stroke();
  }
}

/** A line around what is marked: along the edges of its pixels. */
function around(pen, where, rows, columns, high, wide) {
  const inside = (y, x) => y >= 0 && x >= 0 && y < rows && x < columns && region[where[y * columns + x]] === 1;
  pen.beginPath();
  for (let y = 0; y <= rows; y++)
    for (let x = 0; x <= columns; x++) {
      if (inside(y, x) !== inside(y - 1, x) && x < columns) { pen.moveTo(x * wide, y * high); pen.lineTo((x + 1) * wide, y * high); }
      if (inside(y, x) !== inside(y, x - 1) && y < rows) { pen.moveTo(x * wide, y * high); pen.lineTo(x * wide, (y + 1) * high); }
    }
  const finer = pen.canvas.width / (pen.canvas.clientWidth || pen.canvas.width);
  for (const [ink, thickness] of [["#111111", 3], ["#ffffff", 1.5]]) {
    pen.strokeStyle = ink;
    pen.lineWidth = thickness * finer;
    pen.stroke();
  }
}

/** Where on a slice a pointer is, as an index along each axis. */
function pointed(view, event) {
  const frame = view.canvas.getBoundingClientRect();
  const [down, across] = others(view.axis);
  const clamp = (part, most) => Math.max(0, Math.min(most - 1, Math.floor(part * most)));
  const found = [...at];
  found[view.axis] = view.slider ? at[view.axis] : view.index;
  const row = clamp((event.clientY - frame.top) / frame.height, sides[down]);
  found[down] = view.upside ? sides[down] - 1 - row : row;
  found[across] = clamp((event.clientX - frame.left) / frame.width, sides[across]);
  return found;
}

function read(place) {
  const value = relevance[place[0] * steps[0] + place[1] * steps[1] + place[2]];
  const named = data.names.map((name, axis) => (name ? `${name} ${place[axis] + 1}` : "")).filter(Boolean);
  byId("pixel").textContent = `${named.join(", ")}: ${minus(signed(value))}${share(value)}`;
}

function go(axis, index) {
  at[axis] = index;
  for (const view of views) {
    if (view.slider && view.axis === axis) tell(view);
    if (data.crossed || view.axis === axis) draw(view);
  }
  curves.forEach(line);
}

/** Which slice is shown, and how much it holds. */
function tell(view) {
  const index = at[view.axis];
  view.slider.value = index;
  const held = curves.find((curve) => curve.axis === view.axis);
  const text = `${data.names[view.axis]} ${index + 1} of ${sides[view.axis]}`;
  byId(`said${views.indexOf(view)}`).textContent = held ? `${text}: ${minus(signed(held.sums[index]))}${share(held.sums[index])}` : text;
}

for (const view of views) {
  const [down, across] = others(view.axis);
  const [wide, high] = [sides[across] * data.spacing[across], sides[down] * data.spacing[down]];
  const zoom = 900 / Math.max(wide, high);
  [view.canvas.width, view.canvas.height] = [Math.max(1, Math.round(wide * zoom)), Math.max(1, Math.round(high * zoom))];
  view.slider?.addEventListener("input", () => go(view.axis, Number(view.slider.value)));
  view.canvas.addEventListener("pointermove", (event) => read(pointed(view, event)));
  view.canvas.addEventListener("pointerleave", () => { byId("pixel").innerHTML = "&nbsp;"; });
  if (data.crossed)
    view.canvas.addEventListener("pointerdown", (event) => {
      const place = pointed(view, event);
      for (const axis of others(view.axis)) go(axis, place[axis]);
      read(place);
    });
}

// Curves ------------------------------------------------------------------------------------------------------------

const curves = data.curves.map((curve, i) => ({
  ...curve, canvas: byId(`curve${i}`), sums: floats(curve.values), errors: curve.errors ? floats(curve.errors) : null,
}));

/** A colour of the page as it is now, light or dark. */
function colourOf(name) {
  byId("pixel").style.color = `var(${name})`;
  const found = getComputedStyle(byId("pixel")).color;
  byId("pixel").style.color = "";
  return found;
}

function line(curve) {
  const { canvas, sums, errors } = curve;
  const [above, below] = curve.plain ? [colourOf("--whole"), colourOf("--whole")] : [colourOf("--for"), colourOf("--against")];
  const ink = colourOf("--ink");
  const [wide, high] = [canvas.width, canvas.height];
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, wide, high);
  let [top, bottom] = [0, 0];
  sums.forEach((value, i) => {
    const error = errors ? errors[i] : 0;
    [top, bottom] = [Math.max(top, value + error), Math.min(bottom, value - error)];
  });
  const scale = (high - 8) / (top - bottom || 1);
  const down = (value) => 4 + (top - value) * scale;
  const count = sums.length;
  // Of many moments in a column the highest and the lowest are drawn.
  for (let x = 0; x < Math.min(wide, count); x++) {
    const columns = Math.min(wide, count);
    const [first, last] = [Math.floor((x * count) / columns), Math.max(Math.floor((x * count) / columns) + 1, Math.floor(((x + 1) * count) / columns))];
    let [most, least, error] = [0, 0, 0];
    for (let i = first; i < last; i++) {
      [most, least] = [Math.max(most, sums[i]), Math.min(least, sums[i])];
      if (errors) error = Math.max(error, errors[i]);
    }
    const [left, thick] = [(x * wide) / columns, Math.max(1, wide / columns - (wide / columns > 6 ? 2 : 0))];
    pen.fillStyle = above;
    pen.fillRect(left, down(most), thick, down(0) - down(most));
    pen.fillStyle = below;
    pen.fillRect(left, down(0), thick, down(least) - down(0));
    if (error) {
      const middle = most + least;
      pen.fillStyle = ink;
      pen.fillRect(left + thick / 2 - 1, down(middle + error), 2, Math.max(1, down(middle - error) - down(middle + error)));
    }
  }
  pen.fillStyle = colourOf("--soft");
  pen.fillRect(0, down(0), wide, 1);
  if (curve.axis !== null) {
    pen.strokeStyle = colourOf("--accent");
    pen.lineWidth = 3;
    pen.strokeRect((at[curve.axis] * wide) / count, 1.5, wide / count, high - 3);
  }
}

const indexAt = (curve, event) => {
  const frame = curve.canvas.getBoundingClientRect();
  return Math.max(0, Math.min(curve.sums.length - 1, Math.floor(((event.clientX - frame.left) / frame.width) * curve.sums.length)));
};
for (const curve of curves) {
  curve.canvas.addEventListener("pointermove", (event) => {
    const i = indexAt(curve, event);
    const error = curve.errors ? ` \u00b1 ${number(curve.errors[i])}` : "";
    const told = curve.plain ? number(curve.sums[i]) : signed(curve.sums[i]) + error;
    const named = curve.rate ? `${(curve.from + i / curve.rate).toFixed(3)} s` : `${curve.name} ${i + 1}`;
    byId("pixel").textContent = `${named}: ${minus(told)}${curve.plain ? "" : share(curve.sums[i])}`;
  });
  if (curve.axis !== null) curve.canvas.addEventListener("pointerdown", (event) => go(curve.axis, indexAt(curve, event)));
}

// ------------------------------------------------------------------------------------------------------------------

function all() {
  views.forEach(draw);
  curves.forEach(line);
}
byId("smoothing").addEventListener("input", () => {
  const radius = Number(byId("smoothing").value);
  byId("radius").textContent = radius ? `${radius} pixels` : "off";
  shown = relevance;
  if (radius) {
    shown = new Float32Array(relevance.length);
    for (let i = 0; i < depth; i++) shown.set(smoothed(relevance.subarray(i * steps[0], (i + 1) * steps[0]), width, height, radius), i * steps[0]);
  }
  limit = limitOf(shown);
  [byId("low").textContent, byId("high").textContent] = [minus(number(-limit)), number(limit)];
  all();
});
for (const id of ["opacity", "positive", "negative", "around"]) byId(id).addEventListener("input", all);
let playing = null;
byId("play")?.addEventListener("click", () => {
  byId("play").textContent = playing ? "Play" : "Stop";
  if (playing) clearInterval(playing);
  playing = playing ? null : setInterval(() => go(0, (at[0] + 1) % depth), 1000 / Math.min(25, data.rate));
});
views.filter((view) => view.slider).forEach(tell);
byId("smoothing").dispatchEvent(new Event("input"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => curves.forEach(line));

tellHeight();
