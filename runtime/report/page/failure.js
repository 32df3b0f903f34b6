// What an out of memory was: what was asked, what was free, and why nothing fitted. The recording has no limit of
// the program and no other use of the device, so that a reason outside the layout is said to be unknown.
function largestHole(r, stretches) {
  let largest = {bytes: 0, stream: 0};
  for (const s of stretches) {
    let end = s.at;
    const look = to => { if (to - end > largest.bytes) largest = {bytes: to - end, stream: s.stream}; };
    for (const b of s.blocks) look(r.at[b]), end = r.at[b] + r.bytes[b];
    look(s.at + s.bytes);
  }
  return largest;
}

function reasonText(asked, stream, pending, held, largest, names) {
  const of = number => "stream " + names.streams[number];
  if (held.bytes + pending < asked) return "All of it together is " + bytesText(asked - held.bytes - pending) + " less than was asked, and the driver gave no more.";
  if (held.bytes < asked) return "It would be enough with the " + bytesText(pending) + " that other streams still used.";
  if (largest.bytes < asked) return "It would be enough in one piece, but the largest piece was " + bytesText(asked - largest.bytes) + " too short.";
  if (largest.stream !== stream) return "The largest piece would hold it, but belongs to " + of(largest.stream) + ", whose work may still have used it.";
  return "The largest piece would hold it: what refused it is not in this recording (a limit of the program or of a pool).";
}

// The lines of the program that hold the most at a moment: [bytes, name], the largest first.
function mostHeld(r, moment, names, count) {
  const sums = new Map();
  for (let b = 0; b < r.blocks; ++b) {
    if (r.born[b] > moment || r.freed[b] <= moment) continue;
    const line = names.sites[r.site[b]][0];
    sums.set(line, (sums.get(line) || 0) + r.bytes[b]);
  }
  return [...sums].map(([line, bytes]) => [bytes, names.lines[line]]).sort((a, b) => b[0] - a[0]).slice(0, count);
}

// `failure`: of the recording
function failureText(r, failure, names) {
  const moment = Math.max(failure.event - 1, 0), layout = r.layoutOf(moment), held = holes(r, layout), largest = largestHole(r, layout);
  const most = mostHeld(r, moment, names, 3), pending = r.pending[moment];
  const inLargest = " pieces, the largest " + bytesText(largest.bytes) + " of stream " + names.streams[largest.stream];
  const pieces = !held.count ? "" : held.count === 1 ? " in one piece" : " in " + countText(held.count) + inLargest;
  return "Asked: " + bytesText(failure.bytes) + " for stream " + names.streams[failure.stream] + ", at " + siteText(failure.site) + "\n" +
    "Free: " + bytesText(held.bytes) + pieces + (pending ? "; pending: " + bytesText(pending) : "") + "\n" +
    "Why: " + reasonText(failure.bytes, failure.stream, pending, held, largest, names) + "\n" +
    (most.length ? "Most is held by " + most.map(([bytes, name]) => name + " (" + bytesText(bytes) + ")").join(", ") : "Nothing was live");
}
