// An answer: the word that is chosen shows its maps, and what it owes to other words.

const data = JSON.parse(document.getElementById("data").textContent);
const colours = bytes(data.colours);
const canvases = [...document.querySelectorAll("canvas.picture")];
const pictures = data.pictures.map(() => null);
const find = (selector) => document.querySelector(selector);
let chosen = 0;

/** Maps of a word, smoothed for the eye; all pictures on one scale. */
function drawMaps() {
  if (!canvases.length || pictures.includes(null)) return;
  const maps = data.words[chosen].maps.map((map, i) => {
    const { width, height } = data.pictures[i];
    return smoothed(halves(map), width, height, Math.round((byId("smoothing").value / 1000) * Math.max(width, height)));
  });
  const limit = Math.max(...maps.map(limitOf));
  [byId("low").textContent, byId("high").textContent] = [minus(number(-limit)), number(limit)];
  maps.forEach((map, i) => {
    const { width, height } = data.pictures[i];
    const sheet = new OffscreenCanvas(width, height);
    sheet.getContext("2d").putImageData(painted(map, pictures[i], width, height, { limit, colours, opacity: byId("opacity").value / 100, coloured: true }), 0, 0);
    canvases[i].getContext("2d").drawImage(sheet, 0, 0, canvases[i].width, canvases[i].height);
  });
}

const shade = (value, most) => `color-mix(in srgb, var(--${value > 0 ? "for" : "against"}) ${Math.round(Math.min(1, Math.abs(value) / most) * 75)}%, transparent)`;

function token(text, value, most, kinds = []) {
  const span = document.createElement("span");
  span.textContent = text;
  if (value) span.style.background = shade(value, most);
  if (value !== undefined) span.title = signed(value);
  span.classList.add(...kinds);
  return span;
}

function drawTokens(word) {
  const sums = data.prompt.map(({ from, to }) => word.prompt.slice(from, to).reduce((a, b) => a + b, 0));
  const most = Math.max(...[...sums, ...word.earlier].map(Math.abs)) || 1;
  byId("prompt").replaceChildren(
    ...data.prompt.map(({ text, mark, from, to }, i) => {
      const label = to - from > 1 ? `${text} \u00d7 ${to - from} ` : mark ? `${text} ` : text;
      return token(label, sums[i], most, mark ? ["mark"] : []);
    }),
  );
  byId("answer").replaceChildren(
    ...data.answer.map((text, i) => token(text, word.earlier[i], most, i >= word.own[0] && i < word.own[1] ? ["own"] : [])),
  );
}

function drawParts(word) {
  const [low, high] = word.parts.reduce(([l, h], [, value]) => [Math.min(l, value), Math.max(h, value)], [0, 0]);
  const scale = 100 / (high - low || 1);
  const rows = word.parts.flatMap(([name, value]) => {
    const [label, bar, figure] = [0, 1, 2].map(() => document.createElement("div"));
    label.textContent = name;
    bar.className = "bar";
    const span = document.createElement("span");
    span.style.cssText = `left:${(Math.min(0, value) - low) * scale}%;width:${Math.abs(value) * scale}%;background:var(--${value > 0 ? "for" : "against"})`;
    bar.append(span);
    figure.className = "number";
    figure.textContent = minus(signed(value));
    return [label, bar, figure];
  });
  find(".parts").replaceChildren(...rows);
}

function choose(index) {
  chosen = index;
  const word = data.words[index];
  [...find(".words").children].forEach((button, i) => button.setAttribute("aria-pressed", i === index));
  byId("said").textContent = word.said;
  byId("verdict").innerHTML = word.verdict;
  drawParts(word);
  drawTokens(word);
  drawMaps();
}

find(".words").replaceChildren(
  ...data.words.map(({ text, below }, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    if (below) {
      const small = document.createElement("small");
      small.textContent = below;
      button.append(small);
    }
    button.addEventListener("click", () => choose(i));
    return button;
  }),
);
data.pictures.forEach(({ width, height, image }, i) => {
  const zoom = Math.max(1, Math.round(1120 / width));
  [canvases[i].width, canvases[i].height] = [width * zoom, height * zoom];
  const original = new Image();
  original.onload = () => {
    const paper = new OffscreenCanvas(width, height).getContext("2d");
    paper.drawImage(original, 0, 0);
    pictures[i] = paper.getImageData(0, 0, width, height).data;
    drawMaps();
  };
  original.src = image;
});
for (const id of ["opacity", "smoothing"]) byId(id)?.addEventListener("input", drawMaps);
// What the pictures matter most for is seen first.
choose(data.words.reduce((best, { picture }, i, words) => (Math.abs(picture) > Math.abs(words[best].picture) ? i : best), 0));
tellHeight();
