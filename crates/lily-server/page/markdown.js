// Markdown as models write it, as nodes of a document.
//
// Text only ever becomes text nodes and the few elements made here; markup in it stays text, links lead
// to web and mail addresses only, and an image is a link, because the page loads nothing from elsewhere.
// Every step is linear in the text but for its bounded depth, so that no text freezes the page.

/** Blocks and spans inside one another; what is deeper stays as it was written. */
const DEPTH = 10;
/** Most characters of an address, and of an emphasis. */
const ADDRESS = 2048;
const EMPHASIS = 2048;

/** A text that grows, shown in `root`. Blocks that are complete are not made again. */
export class Markdown {
  constructor(root) {
    this.root = root;
    /** Characters in blocks that are complete, and the number of those. */
    this.read = 0;
    this.complete = 0;
  }

  /** Shows `text`, which begins with all that was shown before. */
  update(text) {
    const lines = text.slice(this.read).split('\n');
    const found = blocks(lines, 0);
    while (this.root.childNodes.length > this.complete) this.root.lastChild.remove();
    this.root.append(...found.map((block) => block.node));
    // Where a block ends is known once the next one has two whole lines.
    const next = found.findLastIndex((block) => block.start + 2 < lines.length);
    if (next > 0) {
      const passed = lines.slice(0, found[next].start);
      this.read += passed.reduce((sum, line) => sum + line.length + 1, 0);
      this.complete += next;
    }
  }
}

// ---- Blocks: each has its first line, the line behind its last, and its node.

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const block = fence(lines, at) ?? heading(lines, at) ?? rule(lines, at) ?? quote(lines, at, depth) ??
      list(lines, at, depth) ?? table(lines, at) ?? paragraph(lines, at, depth);
    found.push({ ...block, start: at });
    at = block.end;
  }
  return found;
}

/** Whether a line ends a paragraph in front of it. */
function interrupts(lines, at, depth) {
  const line = lines[at];
  return isBlank(line) || fenceMark(line) || headingLevel(line) > 0 || isRule(line) ||
    (depth < DEPTH && (quoted(line) !== null || beginsList(line))) || isTable(lines, at);
}

/** Whether a line in a paragraph begins a list: not if it only begins with a year and a full stop. */
function beginsList(line) {
  const mark = itemMark(line);
  return mark && !mark.isEmpty && (!mark.isNumber || mark.first === 1);
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join('\n').trimEnd();
  return { end, node: withSpans('p', text) };
}

function headingLevel(line) {
  const text = line.trimStart();
  let level = 0;
  while (text[level] === '#') level += 1;
  return level <= 6 && (level === text.length || text[level] === ' ') ? level : 0;
}

function heading(lines, at) {
  const level = headingLevel(lines[at]);
  if (level === 0) return null;
  let text = lines[at].trim().slice(level).trim();
  let end = text.length;
  while (text[end - 1] === '#') end -= 1;
  if (end === 0 || text[end - 1] === ' ') text = text.slice(0, end).trim();
  // The page has headings of its own above these.
  return { end: at + 1, node: withSpans(`h${Math.min(level + 2, 6)}`, text) };
}

function isRule(line) {
  const marks = line.replaceAll(' ', '').trim();
  return marks.length >= 3 && '-*_'.includes(marks[0]) && marks === marks[0].repeat(marks.length);
}

function rule(lines, at) {
  return isRule(lines[at]) ? { end: at + 1, node: element('hr') } : null;
}

function fenceMark(line) {
  const found = /^( *)(`{3,}|~{3,})([^`]*)$/.exec(line);
  return found && { indent: found[1].length, mark: found[2], language: found[3].trim().split(/\s/)[0] };
}

function fence(lines, at) {
  const open = fenceMark(lines[at]);
  if (!open) return null;
  const code = [];
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    end += 1;
    const close = line.trim();
    const isClose = close.length >= open.mark.length && close === open.mark[0].repeat(close.length);
    if (isClose) break;
    code.push(line.slice(Math.min(open.indent, indentOf(line))));
  }
  const copy = element('button', 'Copy');
  copy.type = 'button';
  copy.className = 'copy';
  const bar = element('div', element('span', open.language.slice(0, 40)), copy);
  bar.className = 'bar';
  const node = element('div', bar, element('pre', element('code', code.join('\n'))));
  node.className = 'code';
  return { end, node };
}

/** A line of a quotation without its mark. */
function quoted(line) {
  const text = line.trimStart();
  return text.startsWith('>') ? text.slice(text[1] === ' ' ? 2 : 1) : null;
}

function quote(lines, at, depth) {
  if (depth >= DEPTH) return null;
  const inner = [];
  let end = at;
  while (end < lines.length && quoted(lines[end]) !== null) {
    inner.push(quoted(lines[end]));
    end += 1;
  }
  if (end === at) return null;
  return { end, node: element('blockquote', ...blocks(inner, depth + 1).map((block) => block.node)) };
}

/** What begins an item of a list. */
function itemMark(line) {
  const found = /^( *)([-*+]|\d{1,9}[.)])( {1,4}|$)/.exec(expanded(line));
  if (!found || isRule(line)) return null;
  const [all, indent, mark] = found;
  return {
    indent: indent.length,
    width: all.length,
    isNumber: mark.length > 1,
    isEmpty: line.trim() === mark,
    kind: mark.at(-1),
    first: parseInt(mark, 10),
  };
}

function list(lines, at, depth) {
  const first = itemMark(lines[at]);
  if (!first || depth >= DEPTH) return null;
  const items = [];
  let isLoose = false;
  let end = at;
  while (end < lines.length) {
    const mark = itemMark(lines[end]);
    if (!mark || mark.kind !== first.kind || mark.isNumber !== first.isNumber) break;
    const item = itemLines(lines, end, mark, depth);
    items.push(item.lines);
    end = item.end;
    // A blank line between two items is part of the list.
    const next = behindBlank(lines, end);
    const goesOn = next < lines.length && itemMark(lines[next])?.kind === first.kind;
    isLoose ||= item.isLoose || (goesOn && next > end);
    if (goesOn) end = next;
  }
  const node = element(first.isNumber ? 'ol' : 'ul');
  if (first.isNumber && first.first !== 1) node.start = first.first;
  for (const inner of items) node.append(itemNode(inner, isLoose, depth));
  return { end, node };
}

/** The lines of an item without their indent. Models indent by two as often as by the mark's width. */
function itemLines(lines, at, mark, depth) {
  const inner = [expanded(lines[at]).slice(mark.width)];
  let end = at + 1;
  let isLoose = false;
  while (end < lines.length) {
    if (isBlank(lines[end])) {
      const next = behindBlank(lines, end);
      if (next === lines.length || indentOf(lines[next]) < mark.indent + 2) break;
      for (; end < next; end += 1) inner.push('');
      isLoose ||= !itemMark(lines[next]);
      continue;
    }
    const indent = indentOf(lines[end]);
    const isInside = indent >= mark.indent + 2;
    if (!isInside && (itemMark(lines[end]) || interrupts(lines, end, depth))) break;
    inner.push(expanded(lines[end]).slice(Math.min(indent, mark.width)));
    end += 1;
  }
  return { lines: inner, end, isLoose };
}

function itemNode(lines, isLoose, depth) {
  const node = element('li');
  const task = /^\[([ xX])\] /.exec(lines[0]);
  if (task) {
    node.className = 'task';
    node.append(task[1] === ' ' ? '☐ ' : '☑ ');
    lines[0] = lines[0].slice(4);
  }
  for (const block of blocks(lines, depth + 1)) {
    if (block.node.tagName === 'P' && !isLoose) node.append(...block.node.childNodes);
    else node.append(block.node);
  }
  return node;
}

/** The cells of a row. */
function cells(line) {
  const text = line.trim();
  const found = [''];
  for (let at = text[0] === '|' ? 1 : 0; at < text.length; at += 1) {
    if (text[at] === '\\' && text[at + 1] === '|') {
      found[found.length - 1] += '|';
      at += 1;
    } else if (text[at] === '|') {
      if (at + 1 < text.length) found.push('');
    } else {
      found[found.length - 1] += text[at];
    }
  }
  return found.map((cell) => cell.trim());
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes('|')) return false;
  const below = lines[at + 1];
  if (!below.includes('-') || !/^[ |:-]+$/.test(below)) return false;
  const marks = cells(below);
  return marks.every((cell) => /^:?-+:?$/.test(cell)) && marks.length === cells(lines[at]).length;
}

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  const sides = cells(lines[at + 1]).map((mark) => {
    if (!mark.endsWith(':')) return '';
    return mark.startsWith(':') ? 'middle' : 'right';
  });
  const row = (line, tag) => {
    const node = element('tr');
    // No cell that is not in the text: a row of one character must not become a thousand cells.
    cells(line).slice(0, sides.length).forEach((cell, column) => {
      const made = withSpans(tag, cell);
      if (sides[column]) made.className = sides[column];
      node.append(made);
    });
    return node;
  };
  const body = element('tbody');
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes('|')) {
    body.append(row(lines[end], 'td'));
    end += 1;
  }
  const node = element('div', element('table', element('thead', row(lines[at], 'th')), body));
  node.className = 'table';
  return { end, node };
}

function isBlank(line) {
  return line.trim() === '';
}

function behindBlank(lines, at) {
  let next = at;
  while (next < lines.length && isBlank(lines[next])) next += 1;
  return next;
}

function expanded(line) {
  return line.replace(/^[ \t]+/, (space) => space.replaceAll('\t', '    '));
}

function indentOf(line) {
  const text = expanded(line);
  return text.length - text.trimStart().length;
}

// ---- Spans: code, emphasis, links and line ends inside of a block.

function withSpans(tag, text) {
  const node = element(tag);
  spans(node, text, 0);
  return node;
}

function spans(node, text, depth) {
  if (depth >= DEPTH) {
    node.append(text);
    return;
  }
  const scan = new Scan(text);
  let plain = '';
  let at = 0;
  const add = (made) => {
    if (plain) node.append(plain);
    plain = '';
    node.append(made);
  };
  while (at < text.length) {
    const span = scan.span(at, depth);
    if (span) {
      add(span.node);
      at = span.end;
      continue;
    }
    // A mark without its counterpart is text.
    const { length, shown } = scan.plain(at);
    plain += shown;
    at += length;
  }
  if (plain) node.append(plain);
}

/** A text that is searched from left to right. */
class Scan {
  constructor(text) {
    this.text = text;
    /** Marks of code that have no counterpart further on. */
    this.missing = new Set();
    this.pairs = null;
  }

  span(at, depth) {
    const { text } = this;
    switch (text[at]) {
      case '`': return this.code(at);
      case '*': case '_': case '~': return this.emphasis(at, depth);
      case '[': return this.link(at, at, depth);
      case '!': return text[at + 1] === '[' ? this.link(at, at + 1, depth) : null;
      case '<': return this.angle(at);
      case 'h': return this.bare(at);
      case '\n': return { end: at + 1, node: element('br') };
      case '\\': return text[at + 1] === '\n' ? { end: at + 2, node: element('br') } : null;
      default: return null;
    }
  }

  /** Text that is no span: how long it is, and what it shows. */
  plain(at) {
    const { text } = this;
    const next = text[at + 1];
    if (text[at] === '\\' && next && '\\`*_~[]()#+-.!|<>{}"\''.includes(next)) {
      return { length: 2, shown: next };
    }
    // A run of marks is judged as a whole.
    if ('`*_~'.includes(text[at])) {
      const run = this.run(at);
      return { length: run, shown: text.slice(at, at + run) };
    }
    return { length: 1, shown: text[at] };
  }

  run(at) {
    let end = at + 1;
    while (this.text[end] === this.text[at]) end += 1;
    return end - at;
  }

  /** Where the code span that begins at `at` ends, and its content; `null` if none begins there. */
  codeSpan(at) {
    const mark = '`'.repeat(this.run(at));
    if (this.missing.has(mark)) return null;
    for (let from = at + mark.length; ;) {
      const close = this.text.indexOf(mark, from);
      if (close < 0) break;
      const run = this.run(close);
      if (run === mark.length) {
        return { end: close + run, text: this.text.slice(at + run, close) };
      }
      from = close + run;
    }
    this.missing.add(mark);
    return null;
  }

  code(at) {
    const found = this.codeSpan(at);
    if (!found) return null;
    const inner = found.text.replaceAll('\n', ' ');
    const isPadded = inner.startsWith(' ') && inner.endsWith(' ') && inner.trim() !== '';
    return { end: found.end, node: element('code', isPadded ? inner.slice(1, -1) : inner) };
  }

  opens(at, run) {
    const { text } = this;
    const next = text[at + run];
    if (next === undefined || isSpace(next)) return false;
    return text[at] !== '_' || !isWord(text[at - 1]);
  }

  closes(at, run) {
    const { text } = this;
    if (isSpace(text[at - 1])) return false;
    return text[at] !== '_' || !isWord(text[at + run]);
  }

  emphasis(at, depth) {
    const { text } = this;
    const run = this.run(at);
    const isStruck = text[at] === '~';
    if (run > 3 || (isStruck && run !== 2) || !this.opens(at, run)) return null;
    const from = at + run;
    const close = this.closing(from, text[at], run);
    if (close < 0) return null;
    const inner = element(isStruck ? 'del' : run === 1 ? 'em' : 'strong');
    spans(inner, text.slice(from, close), depth + 1);
    return { end: close + run, node: run === 3 ? element('em', inner) : inner };
  }

  /** Where `count` marks end what begins at `from`; -1 if nowhere near. */
  closing(from, mark, count) {
    const { text } = this;
    const limit = Math.min(text.length, from + EMPHASIS);
    // Lengths of the marks that have begun something inside.
    const open = [];
    for (let at = from; at < limit;) {
      if (text[at] === '\\') {
        at += 2;
      } else if (text[at] === '`') {
        at = this.codeSpan(at)?.end ?? at + this.run(at);
      } else if (text[at] === mark) {
        const run = this.run(at);
        const closes = at > from && this.closes(at, run);
        if (closes && open.includes(run)) {
          // What began behind that and did not end is text.
          open.length = open.lastIndexOf(run);
        } else if (closes && run === count) {
          return at;
        } else if (closes && open.length > 0 && open.at(-1) + count === run) {
          // The marks of the inner span and of this one.
          return at + run - count;
        } else if (this.opens(at, run)) {
          open.push(run);
        }
        at += run;
      } else {
        at += 1;
      }
    }
    return -1;
  }

  /** The counterparts of all opening brackets. */
  brackets() {
    if (this.pairs) return this.pairs;
    this.pairs = new Map();
    const open = [];
    for (let at = 0; at < this.text.length; at += 1) {
      if (this.text[at] === '\\') at += 1;
      else if (this.text[at] === '[') open.push(at);
      else if (this.text[at] === ']' && open.length > 0) this.pairs.set(open.pop(), at);
    }
    return this.pairs;
  }

  /** `[text](address "title")`, or an image, which begins one character earlier. */
  link(at, bracket, depth) {
    const { text } = this;
    const close = this.brackets().get(bracket);
    if (close === undefined || text[close + 1] !== '(') return null;
    const limit = Math.min(text.length, close + ADDRESS);
    let end = close + 2;
    for (let open = 1; end < limit; end += 1) {
      if (text[end] === '\\') end += 1;
      else if (text[end] === '(') open += 1;
      else if (text[end] === ')' && (open -= 1) === 0) break;
    }
    if (text[end] !== ')') return null;
    const inside = text.slice(close + 2, end).trim();
    const href = address(inside.split(/\s/)[0].replace(/^<|>$/g, ''));
    if (!href) return null;
    const node = anchor(href);
    const label = text.slice(bracket + 1, close);
    // A link has no links inside.
    if (label.includes('http') || label.includes('](')) node.append(label);
    else spans(node, label, depth + 1);
    if (!node.textContent) node.append(href);
    return { end: end + 1, node };
  }

  /** `<https://…>` and `<br>`; all else in angle brackets is text. */
  angle(at) {
    const inside = this.text.slice(at + 1, at + ADDRESS);
    const line = /^br *\/?>/i.exec(inside);
    if (line) return { end: at + 1 + line[0].length, node: element('br') };
    const close = inside.indexOf('>');
    const href = close > 0 && !/\s/.test(inside.slice(0, close)) && address(inside.slice(0, close));
    return href ? { end: at + close + 2, node: anchor(href, inside.slice(0, close)) } : null;
  }

  /** An address in the text as it is. */
  bare(at) {
    const { text } = this;
    const isStart = text.startsWith('http://', at) || text.startsWith('https://', at);
    if (!isStart || isWord(text[at - 1])) return null;
    const found = /^[^\s<>"`|]+/.exec(text.slice(at, at + ADDRESS))[0];
    let end = found.length;
    while (end > 0 && '.,;:!?\'*_~)]'.includes(found[end - 1])) {
      const isPart = found[end - 1] === ')' && found.slice(0, end).includes('(');
      if (isPart) break;
      end -= 1;
    }
    const href = address(found.slice(0, end));
    return href ? { end: at + end, node: anchor(href, found.slice(0, end)) } : null;
  }
}

/** An address that a reader may be led to; `null` for any other. */
function address(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** A link that shows where it leads, and tells the other side nothing. */
function anchor(href, ...content) {
  const node = element('a', ...content);
  node.href = href;
  node.title = href;
  node.target = '_blank';
  node.rel = 'noopener noreferrer nofollow';
  return node;
}

function isSpace(character) {
  return character === undefined || character.trim() === '';
}

function isWord(character) {
  return character !== undefined && /[\p{L}\p{N}_]/u.test(character);
}

function element(tag, ...content) {
  const node = document.createElement(tag);
  node.append(...content);
  return node;
}
