// What an agent is given to look at: a picture, a document of one page, a long list and a word.

import { crc32, deflateSync } from "node:zlib";

const SIDE = 16;

/** A number in four bytes. */
function long(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

/** A part of a PNG file. */
function chunk(kind, data) {
  const body = Buffer.concat([Buffer.from(kind), data]);
  return Buffer.concat([long(data.length), body, long(crc32(body))]);
}

/** A grey square as a PNG file. */
function picture() {
  const head = Buffer.concat([long(SIDE), long(SIDE), Buffer.from([8, 2, 0, 0, 0])]);
  const row = Buffer.concat([Buffer.from([0]), Buffer.alloc(3 * SIDE, 200)]);
  return Buffer.concat([
    Buffer.from("\x89PNG\r\n\x1a\n", "latin1"),
    chunk("IHDR", head),
    chunk("IDAT", deflateSync(Buffer.concat(Array(SIDE).fill(row)))),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/** A page with a line of text as a PDF file. */
function page() {
  const text = "BT /F1 24 Tf 20 100 Td (Two lines.) Tj ET";
  const font = "<< /Font << /F1 5 0 R >> >>";
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R /Resources ${font} >>`,
    `<< /Length ${text.length} >>\nstream\n${text}\nendstream`,
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
  ];
  let made = "%PDF-1.4\n";
  let places = "0000000000 65535 f \n";
  for (const [at, object] of objects.entries()) {
    places += `${String(made.length).padStart(10, "0")} 00000 n \n`;
    made += `${at + 1} 0 obj\n${object}\nendobj\n`;
  }
  const size = objects.length + 1;
  const end = `trailer\n<< /Size ${size} /Root 1 0 R >>\nstartxref\n${made.length}\n%%EOF\n`;
  return Buffer.from(`${made}xref\n0 ${size}\n${places}${end}`);
}

export const PICTURE = "shown/square.png";
export const DOCUMENT = "shown/page.pdf";

export const LIST = "shown/list.txt";
const list = Array.from({ length: 500 }, (_, at) => `${at} of a long list whose lines say no more`);

/** The word that is in a file, unless the environment names another. */
export const WORD = "heron";
export const WORD_FILE = "shown/word.txt";

/** The files, by path. */
export const SHOWN = {
  [PICTURE]: picture(),
  [DOCUMENT]: page(),
  [LIST]: list.join("\n"),
  [WORD_FILE]: `${process.env.WORD ?? WORD}\n`,
};

/** A search of the web that the server makes by itself. */
export const SEARCH = {
  query: "two lines",
  results: [{ title: "Lines", url: "https://example.org/lines" }],
};
