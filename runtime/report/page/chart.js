// Memory over time, stacked. Each column of pixels shows its moment of most use, so that no peak is lost. The
// view is a range of x: operations, or microseconds.
function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) canvas.width = Math.round(width * ratio), canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return {pen, width, height};
}
const colourOf = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

let stripes;
function striped(pen, colour, paper) {  // freed memory that is still in use
  if (!stripes) stripes = new Map();
  const key = colour + paper;
  if (!stripes.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const p = tile.getContext("2d");
    p.fillStyle = paper, p.fillRect(0, 0, 6, 6);
    p.strokeStyle = colour, p.lineWidth = 2, p.beginPath();
    for (const d of [-6, 0, 6]) p.moveTo(d - 1, 7), p.lineTo(d + 7, -1);
    p.stroke();
    stripes.set(key, pen.createPattern(tile, "repeat"));
  }
  return stripes.get(key);
}

// Round numbers from 0 to `most`, in powers of two or ten.
function steps(most, count, base) {
  const rough = most / count, power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const step = [1, 2, 4, 5, 8].map(f => f * power).find(s => s >= rough && (base === 10 || Number.isInteger(Math.log2(s)))) || power * base;
  const all = [];
  for (let v = 0; v <= most; v += step) all.push(v);
  return all;
}

class Chart {
  constructor(canvas) {
    this.canvas = canvas, this.left = 74, this.bottom = 24, this.top = 10;
  }
  show(recording, peaks) {
    this.recording = recording, this.peaks = peaks;
    this.setAxis(this.axis || "operations");
  }
  setAxis(axis) {
    const r = this.recording, moments = this.view && this.axis ? [this.momentAt(this.view[0]), this.momentAt(this.view[1])] : null;
    this.axis = axis;
    this.whole = axis === "time" ? [r.us[r.before], Math.max(r.us[r.events - 1], r.us[r.before] + 1)] : [r.before, Math.max(r.events, r.before + 1)];
    this.view = moments && moments[1] > moments[0] ? moments.map(m => this.xOf(m)) : [...this.whole];
    this.clamp();
  }
  xOf(moment) { return this.axis === "time" ? this.recording.us[moment] : moment; }
  momentAt(x) {
    const r = this.recording;
    return Math.min(r.events - 1, this.axis === "time" ? r.momentAt(x) : Math.max(r.before, Math.floor(x)));
  }
  get plotWidth() { return Math.max(1, this.canvas.clientWidth - this.left - 6); }
  pixelOf(x) { return this.left + (x - this.view[0]) / (this.view[1] - this.view[0]) * this.plotWidth; }
  xAt(pixel) { return this.view[0] + (pixel - this.left) / this.plotWidth * (this.view[1] - this.view[0]); }
  // The moment that a column shows.
  momentUnder(pixel) {
    const from = this.momentAt(this.xAt(pixel)), to = this.momentAt(this.xAt(pixel + 1));
    return to > from + 1 ? this.peaks.in(from, to) : from;
  }
  clamp() {
    const least = this.axis === "time" ? 1 : 8, [low, high] = this.whole;
    let width = Math.min(Math.max(this.view[1] - this.view[0], least), high - low);
    const from = Math.min(Math.max(this.view[0], low), high - width);
    this.view = [from, from + width];
  }
  zoom(factor, pixel) {
    const x = this.xAt(pixel);
    this.view = this.view.map(edge => x + (edge - x) * factor);
    this.clamp();
  }
  moveBy(x) { this.view = this.view.map(edge => edge + x), this.clamp(); }
  // Moves a moment into view.
  reveal(moment) {
    const x = this.xOf(moment);
    if (x < this.view[0] || x > this.view[1]) this.moveBy(x - (this.view[0] + this.view[1]) / 2);
  }

  columns(view, width) {
    const all = new Uint32Array(width), step = (view[1] - view[0]) / width;
    let from = this.momentAt(view[0]);
    for (let c = 0; c < width; ++c) {
      const to = this.momentAt(view[0] + step * (c + 1));
      all[c] = to > from ? this.peaks.in(from, to) : from;
      from = to;
    }
    return all;
  }
  // Areas of all categories, bottom up, then pending memory; `tall`: bytes at full height.
  areas(pen, stack, columns, left, base, height, tall, chosen) {
    const k = stack.names.length, r = this.recording, w = columns.length;
    const tops = new Float32Array((k + 2) * w);
    for (let c = 0; c < w; ++c) {
      const sums = c && columns[c] === columns[c - 1] ? null : stack.at(columns[c]);
      let sum = 0;
      for (let i = 0; i < k; ++i) sum += sums ? sums[i] : 0, tops[(i + 1) * w + c] = sums ? sum : tops[(i + 1) * w + c - 1];
      tops[(k + 1) * w + c] = tops[k * w + c] + r.pending[columns[c]];
    }
    const y = v => base - v / tall * height;
    for (let i = 0; i <= k; ++i) {
      pen.beginPath();
      for (let c = 0; c < w; ++c) { const v = y(tops[(i + 1) * w + c]); pen.lineTo(left + c, v), pen.lineTo(left + c + 1, v); }
      for (let c = w - 1; c >= 0; --c) { const v = y(tops[i * w + c]); pen.lineTo(left + c + 1, v), pen.lineTo(left + c, v); }
      pen.globalAlpha = chosen >= 0 && chosen !== i ? 0.22 : 1;
      pen.fillStyle = i < k ? stack.colours[i] : striped(pen, colourOf("--soft"), colourOf("--card"));
      pen.fill();
    }
    pen.globalAlpha = 1;
  }
  scales(pen, width, height, tall) {
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif", pen.lineWidth = 1;
    pen.textAlign = "right", pen.textBaseline = "middle";
    for (const v of steps(tall, 5, 2)) {
      const y = Math.round(height - this.bottom - v / tall * (height - this.bottom - this.top)) + 0.5;
      pen.strokeStyle = colourOf("--line"), pen.beginPath(), pen.moveTo(this.left, y), pen.lineTo(width - 6, y), pen.stroke();
      pen.fillStyle = colourOf("--soft"), pen.fillText(scaleText(v), this.left - 8, y);
    }
    pen.textAlign = "center", pen.textBaseline = "top";
    const zero = this.axis === "time" ? 0 : this.recording.before, from = this.view[0] - zero, to = this.view[1] - zero;
    const label = v => this.axis === "time" ? timeText(v) : countText(v);
    const all = steps(to - from, 7, 10), room = this.plotWidth / (to - from);
    let step = this.axis === "time" ? all[1] || 1 : Math.max(all[1] || 1, 1);  // operations are whole
    // Labels keep apart in a narrow window: steps grow until the widest label fits between two.
    while (step * room < pen.measureText(label(Math.floor(to / step) * step)).width + 14 && step < to - from) step *= 2;
    for (let v = Math.ceil(from / step) * step; v <= to; v += step) {
      const x = this.pixelOf(v + zero), half = pen.measureText(label(v)).width / 2;
      if (x - half < this.left - 6 || x + half > width - 2) continue;
      pen.fillText(label(v), x, height - this.bottom + 7);
      pen.fillRect(x, height - this.bottom, 1, 4);
    }
  }
  // Named moments, such as the rounds of a replay.
  marks(pen, marks, tallPixels) {
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif", pen.textAlign = "left", pen.textBaseline = "top";
    pen.strokeStyle = colourOf("--soft"), pen.fillStyle = colourOf("--soft"), pen.lineWidth = 1;
    let free = this.left;
    for (const mark of marks) {
      const x = Math.round(this.pixelOf(this.xOf(mark.event))) + 0.5;
      if (x < this.left || x > this.left + this.plotWidth) continue;
      pen.setLineDash([3, 3]), pen.beginPath(), pen.moveTo(x, this.top), pen.lineTo(x, this.top + tallPixels), pen.stroke(), pen.setLineDash([]);
      if (x + 4 < free) continue;
      pen.fillText(mark.name, x + 4, this.top);
      free = x + 12 + pen.measureText(mark.name).width;
    }
  }
  reservedLine(pen, columns, base, height, tall) {
    pen.strokeStyle = colourOf("--ink"), pen.lineWidth = 1.25, pen.beginPath();
    columns.forEach((moment, c) => { const y = base - this.recording.reserved[moment] / tall * height; pen.lineTo(this.left + c, y), pen.lineTo(this.left + c + 1, y); });
    pen.stroke();
    pen.fillStyle = colourOf("--ink"), pen.textAlign = "right", pen.textBaseline = "bottom";
    const right = this.left + this.plotWidth - 4, last = this.recording.reserved[columns[columns.length - 1]];
    const level = Math.max(base - last / tall * height - 2, this.top + 4);
    pen.strokeStyle = colourOf("--card"), pen.lineWidth = 4, pen.strokeText("reserved", right, level);  // over what crosses it
    pen.fillText("reserved", right, level);
  }

  draw(stack, {moment, hovered, chosen, life}) {
    const {pen, width, height} = prepared(this.canvas), r = this.recording;
    const base = height - this.bottom, tallPixels = base - this.top;
    const columns = this.columns(this.view, Math.floor(this.plotWidth));
    let most = 1;
    for (const c of columns) most = Math.max(most, r.reserved[c], r.live[c] + r.pending[c]);
    const tall = most * 1.08;
    this.scales(pen, width, height, tall);
    this.areas(pen, stack, columns, this.left, base, tallPixels, tall, chosen);
    this.reservedLine(pen, columns, base, tallPixels, tall);
    this.marks(pen, r.marks, tallPixels);
    for (const f of r.failures) {
      const x = this.pixelOf(this.xOf(f.event));
      if (x < this.left || x > width) continue;
      pen.fillStyle = "#d6262f", pen.beginPath(), pen.moveTo(x - 6, this.top - 9), pen.lineTo(x + 6, this.top - 9), pen.lineTo(x, this.top + 2), pen.fill();
      pen.fillRect(x - 0.5, this.top, 1, tallPixels);
    }
    if (life) {
      const from = Math.max(this.left, this.pixelOf(this.xOf(life[0]))), to = Math.min(width - 6, Math.max(this.pixelOf(this.xOf(Math.min(life[1], r.events - 1))), from + 2));
      pen.fillStyle = colourOf("--accent"), pen.globalAlpha = 0.16, pen.fillRect(from, this.top, to - from, tallPixels), pen.globalAlpha = 1;
    }
    this.line(pen, moment, colourOf("--accent"), 2, base);
    if (hovered !== null) this.line(pen, hovered, colourOf("--ink"), 1, base);
  }
  line(pen, moment, colour, thick, base) {
    const x = this.pixelOf(this.xOf(moment) + (this.axis === "time" ? 0 : 0.5));
    if (x < this.left || x > this.left + this.plotWidth + 1) return;
    pen.fillStyle = colour, pen.fillRect(Math.round(x - thick / 2), this.top, thick, base - this.top);
  }
}

// The whole recording, small, with the view marked; redrawn only when that changes.
class Overview {
  constructor(canvas, chart) { this.canvas = canvas, this.chart = chart; }
  pixelOf(x) { const [low, high] = this.chart.whole; return this.chart.left + (x - low) / (high - low) * this.chart.plotWidth; }
  xAt(pixel) { const [low, high] = this.chart.whole; return low + (pixel - this.chart.left) / this.chart.plotWidth * (high - low); }
  draw(stack) {
    const {pen, width, height} = prepared(this.canvas), chart = this.chart, key = [stack.names.join(), width, chart.axis, colourOf("--card"), chart.recording.device].join();
    if (this.key !== key) {
      this.key = key, this.picture = document.createElement("canvas");
      this.picture.width = width, this.picture.height = height;
      const columns = chart.columns(chart.whole, Math.floor(chart.plotWidth)), r = chart.recording;
      chart.areas(this.picture.getContext("2d"), stack, columns, chart.left, height, height - 2, Math.max(1, r.live[r.peak] + r.pending[r.peak]), -1);
    }
    pen.drawImage(this.picture, 0, 0, width, height);
    const from = this.pixelOf(chart.view[0]), to = Math.max(this.pixelOf(chart.view[1]), from + 3);
    pen.fillStyle = colourOf("--card"), pen.globalAlpha = 0.72;
    pen.fillRect(chart.left, 0, from - chart.left, height), pen.fillRect(to, 0, width - to, height);
    pen.globalAlpha = 1, pen.strokeStyle = colourOf("--accent"), pen.lineWidth = 1.5;
    pen.strokeRect(from, 1, to - from, height - 2);
  }
}
