// COCO's compressed run lengths: of a mask in columns, how many pixels are 0, then 1, then 0, ...

// The lengths in a string: numbers of 5 bits a character, the lowest first, from the fourth on as the
// difference to the last but one.
export function runLengths(text) {
  const counts = [];
  for (let at = 0; at < text.length; ) {
    let value = 0, shift = 0, part;
    do {
      part = text.charCodeAt(at++) - 48;
      value += (part & 31) * 2 ** shift;
      shift += 5;
    } while (part & 32);
    if (part & 16) value -= 2 ** shift;
    counts.push(counts.length > 2 ? value + counts[counts.length - 2] : value);
  }
  return counts;
}

// Calls `fill(x, top, bottom)` for the parts of columns that are in the mask, in an image of another size.
// Of each column there, and each row, the nearest one of the mask is shown.
export function forEachColumn({ size: [height, width], counts }, shownHeight, shownWidth, fill) {
  const ends = [];
  let end = 0;
  for (const count of runLengths(counts)) ends.push((end += count));
  const row = y => Math.min(shownHeight, Math.max(0, Math.ceil((y * shownHeight) / height - 0.5)));
  let run = 0; // the first one that ends in this column or behind it
  for (let x = 0; x < shownWidth; x++) {
    const start = Math.floor(((x + 0.5) * width) / shownWidth) * height, stop = start + height;
    while (run < ends.length && ends[run] <= start) run++;
    for (let each = run; each < ends.length && (each ? ends[each - 1] : 0) < stop; each++) {
      if (each % 2 === 0) continue;
      const top = row(Math.max(ends[each - 1] - start, 0)), bottom = row(Math.min(ends[each] - start, height));
      if (top < bottom) fill(x, top, bottom);
    }
  }
}
