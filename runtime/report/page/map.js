// The memory layout at one moment. Every address that is ever mapped has a fixed place in the rows of its
// stream, so that a block does not move over time. Only rows in view are drawn.
const ROW = 13, GAP = 3, HEAD = 24, SIDE = 4;

class MemoryMap {
  constructor(canvas, frame, spacer, names) {
    this.canvas = canvas, this.frame = frame, this.spacer = spacer, this.names = names;
    this.closeness = 0, this.stream = undefined;
  }
  show(recording) {
    this.recording = recording, this.lanes = [];
    for (const r of recording.ranges) {
      let lane = this.lanes.find(l => l.stream === r.stream);
      if (!lane) this.lanes.push(lane = {stream: r.stream, parts: [], bytes: 0});
      const last = lane.parts[lane.parts.length - 1];
      if (last && r.at <= last.at + last.bytes) last.bytes = Math.max(last.bytes, r.at + r.bytes - last.at);
      else lane.parts.push({at: r.at, bytes: r.bytes});
    }
    for (const lane of this.lanes) for (const p of lane.parts) p.place = lane.bytes, lane.bytes += p.bytes;
    this.lanes.sort((a, b) => b.bytes - a.bytes);
    this.choose(undefined);
  }
  choose(stream) {
    this.stream = stream, this.shown = this.lanes.filter(l => stream === undefined || l.stream === stream);
    this.scale(0);
  }
  // Bytes per row: a power of two. At first everything is in view; each step halves it.
  scale(closeness, keepY = 0) {
    const total = this.shown.reduce((sum, l) => sum + l.bytes, 0), rows = Math.max(4, Math.floor(this.frame.clientHeight / (ROW + GAP)) - 3 * this.shown.length);
    const before = this.rowBytes, first = 2 ** Math.ceil(Math.log2(Math.max(total / rows, 4096)));
    this.closeness = Math.min(Math.max(closeness, 0), Math.max(0, Math.log2(first) - 12));
    this.rowBytes = first / 2 ** this.closeness;
    let top = 0;
    for (const lane of this.shown) lane.top = top, lane.rows = Math.ceil(lane.bytes / this.rowBytes), top += HEAD + lane.rows * (ROW + GAP) + 8;
    this.spacer.style.height = top + "px";
    if (before) this.frame.scrollTop = (this.frame.scrollTop + keepY) * before / this.rowBytes - keepY;
  }
  static placeOf(lane, at) {
    let low = 0, high = lane.parts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (lane.parts[middle].at <= at) low = middle; else high = middle - 1;
    }
    return lane.parts[low].place + at - lane.parts[low].at;
  }

  draw(stack, moment, lit) {
    const {pen, width, height} = prepared(this.canvas), r = this.recording, top = this.frame.scrollTop;
    this.rowWidth = width - 2 * SIDE, this.moment = moment, this.pen = pen;
    this.layout = r.layout(moment, this.stream);
    this.waiting = false;
    pen.textBaseline = "middle", pen.textAlign = "left";
    for (const lane of this.shown) {
      const y = lane.top - top, end = y + HEAD + lane.rows * (ROW + GAP);
      if (end < 0 || y > height) continue;
      const mine = this.layout.filter(s => s.stream === lane.stream);
      this.head(pen, lane, mine, y);
      // The places in view.
      const from = Math.max(0, Math.floor((-y - HEAD) / (ROW + GAP))) * this.rowBytes, to = Math.ceil((height - y - HEAD) / (ROW + GAP)) * this.rowBytes;
      this.clip = {from, to: Math.min(to, lane.bytes), y: y + HEAD};
      pen.fillStyle = colourOf("--line");
      this.bar(0, lane.bytes, 0.5, ROW - 1);  // a thin line: not mapped at this moment
      for (const s of mine) {
        const place = MemoryMap.placeOf(lane, s.at);
        pen.fillStyle = colourOf("--free");
        this.bar(place, s.bytes, ROW, 0);
        this.blocks(pen, stack, s, place, moment, lit);
      }
    }
  }
  head(pen, lane, stretches, y) {
    const sum = key => stretches.reduce((n, s) => n + s[key], 0), held = holes(this.recording, stretches);
    pen.font = "600 12px system-ui, 'DejaVu Sans', sans-serif", pen.fillStyle = colourOf("--ink");
    const name = "stream " + this.names.streams[lane.stream];
    pen.fillText(name, SIDE, y + HEAD / 2 + 1);
    const x = SIDE + pen.measureText(name).width + 12;
    pen.font = "12px system-ui, 'DejaVu Sans', sans-serif", pen.fillStyle = colourOf("--soft");
    const pending = sum("pending");
    pen.fillText(bytesText(sum("bytes")) + " reserved   " + bytesText(sum("live")) + " live" + (pending ? "   " + bytesText(pending) + " pending" : "") +
      (held.count ? "   " + bytesText(held.bytes) + " free in " + countText(held.count) + (held.count > 1 ? " holes, the largest " + bytesText(held.largest) : " hole") : ""), x, y + HEAD / 2 + 1);
  }
  // Draws a stretch of places as bars, one per row.
  bar(place, bytes, thick, down) {
    let at = Math.max(place, this.clip.from);
    const end = Math.min(place + bytes, this.clip.to);
    while (at < end) {
      const row = Math.floor(at / this.rowBytes), stop = Math.min(end, (row + 1) * this.rowBytes);
      const x = SIDE + (at - row * this.rowBytes) / this.rowBytes * this.rowWidth;
      this.pen.fillRect(x, this.clip.y + row * (ROW + GAP) + down, (stop - at) / this.rowBytes * this.rowWidth, thick);
      at = stop;
    }
  }
  blocks(pen, stack, stretch, place, moment, lit) {
    const r = this.recording, pixel = this.rowBytes / this.rowWidth;
    let cell = -1, covered = 0, colour = "";  // blocks smaller than a pixel share it
    const flush = () => {
      if (cell < 0) return;
      pen.globalAlpha = Math.min(1, 0.25 + 0.75 * covered / pixel), pen.fillStyle = colour;
      this.bar(cell * pixel, pixel, ROW, 0);
      pen.globalAlpha = 1, cell = -1;
    };
    for (const b of stretch.blocks) {
      const at = place + r.at[b] - stretch.at, bytes = r.bytes[b];
      if (at >= this.clip.to) break;
      if (at + bytes <= this.clip.from) continue;
      const pending = r.freed[b] <= moment;
      const its = pending ? striped(pen, COLOURS[r.user[b] % COLOURS.length], colourOf("--card")) : stack.colours[stack.of[b]];
      if (bytes < pixel) {
        const here = Math.floor(at / pixel);
        if (here !== cell) flush(), cell = here, covered = 0;
        covered += bytes, colour = its;
        continue;
      }
      flush();
      pen.fillStyle = its;
      this.bar(at, Math.max(bytes - (bytes > 6 * pixel ? pixel : 0), pixel), ROW, 0);  // a gap between large neighbours
      if (b === lit) pen.fillStyle = colourOf("--ink"), this.bar(at, bytes, 2, ROW - 2), this.bar(at, bytes, 2, 0);
    }
    flush();
  }

  // Returns: {block}, {hole: {at, bytes}}, {unmapped: true}, or null.
  under(x, y) {
    const deep = y + this.frame.scrollTop;
    for (const lane of this.shown) {
      const row = Math.floor((deep - lane.top - HEAD) / (ROW + GAP));
      if (row < 0 || row >= lane.rows) continue;
      const place = row * this.rowBytes + (x - SIDE) / this.rowWidth * this.rowBytes;
      const part = lane.parts.find(p => place >= p.place && place < p.place + p.bytes);
      if (!part) return null;
      const at = part.at + place - part.place, stretch = this.layout.find(s => s.stream === lane.stream && at >= s.at && at < s.at + s.bytes);
      return stretch ? this.inStretch(stretch, at) : {unmapped: true, at};
    }
    return null;
  }
  inStretch(s, at) {
    const r = this.recording;
    let low = 0, high = s.blocks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (r.at[s.blocks[middle]] <= at) low = middle + 1; else high = middle;
    }
    const before = low ? s.blocks[low - 1] : -1, end = before < 0 ? s.at : r.at[before] + r.bytes[before];
    if (before >= 0 && at < end) return {block: before};
    return {hole: {at: end, bytes: (low < s.blocks.length ? r.at[s.blocks[low]] : s.at + s.bytes) - end, stream: s.stream}};
  }
}

// Free memory between blocks. Rounding leaves less than 512 B behind a block, which is no hole.
function holes(r, stretches) {
  const all = {count: 0, bytes: 0, largest: 0};
  for (const s of stretches) {
    let end = s.at;
    const gap = to => {
      const bytes = to - end;
      if (bytes >= 512) ++all.count, all.bytes += bytes, all.largest = Math.max(all.largest, bytes);
    };
    for (const b of s.blocks) gap(r.at[b]), end = r.at[b] + r.bytes[b];
    gap(s.at + s.bytes);
  }
  return all;
}
