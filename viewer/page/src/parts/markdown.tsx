/** Markdown as elements of our own: each text is a text node, nothing is read as HTML. */

import { useMemo } from "preact/hooks";
import type { Span } from "../words/inline";
import { blocksOf, type Block } from "../words/markdown";
import { Copy, Text } from "./text";

export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => blocksOf(text), [text]);
  return (
    <div class="markdown">
      <Blocks blocks={blocks} />
    </div>
  );
}

function Blocks({ blocks }: { blocks: Block[] }) {
  return (
    <>
      {blocks.map((block, at) => (
        <BlockView key={at} block={block} />
      ))}
    </>
  );
}

function BlockView({ block }: { block: Block }) {
  switch (block.kind) {
    case "paragraph":
      return (
        <p>
          <Spans spans={block.spans} />
        </p>
      );
    case "heading":
      // One level for all: the page's own headings are above, whatever a model writes.
      return (
        <h2 class={`level${block.level}`}>
          <Spans spans={block.spans} />
        </h2>
      );
    case "code":
      return <Code language={block.language} text={block.text} />;
    case "quote":
      return (
        <blockquote>
          <Blocks blocks={block.blocks} />
        </blockquote>
      );
    case "list":
      return <List block={block} />;
    case "table":
      return <Table block={block} />;
    case "rule":
      return <hr />;
  }
}

function Code({ language, text }: { language: string; text: string }) {
  return (
    <div class="code-block">
      <div class="code-bar">
        <span>
          <Text text={language || "text"} />
        </span>
        <Copy text={text} />
      </div>
      <pre>
        <Text text={text} />
      </pre>
    </div>
  );
}

function List({ block }: { block: Extract<Block, { kind: "list" }> }) {
  const items = block.items.map((item, at) => (
    <li key={at} {...(item.number === null ? {} : { value: item.number })}>
      <Blocks blocks={item.blocks} />
    </li>
  ));
  return block.isOrdered ? <ol>{items}</ol> : <ul>{items}</ul>;
}

function Table({ block }: { block: Extract<Block, { kind: "table" }> }) {
  return (
    <table>
      <thead>
        <tr>
          {block.head.map((cell, at) => (
            <th key={at} scope="col">
              <Spans spans={cell} />
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {block.rows.map((row, at) => (
          <tr key={at}>
            {row.map((cell, column) => (
              <td key={column}>
                <Spans spans={cell} />
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Spans({ spans }: { spans: Span[] }) {
  return (
    <>
      {spans.map((span, at) => (
        <SpanView key={at} span={span} />
      ))}
    </>
  );
}

function SpanView({ span }: { span: Span }) {
  switch (span.kind) {
    case "text":
      return <Text text={span.text} />;
    case "code":
      return (
        <code>
          <Text text={span.text} />
        </code>
      );
    case "strong":
      return (
        <strong>
          <Spans spans={span.spans} />
        </strong>
      );
    case "em":
      return (
        <em>
          <Spans spans={span.spans} />
        </em>
      );
    case "del":
      return (
        <del>
          <Spans spans={span.spans} />
        </del>
      );
    case "link":
      return <Link address={span.address} spans={span.spans} />;
  }
}

/** A link to another host. What it leads to is in sight, whatever its words say. */
function Link({ address, spans }: { address: string; spans: Span[] }) {
  const { host } = new URL(address);
  const first = spans[0];
  const saysIt = spans.length === 1 && first?.kind === "text" && first.text === address;
  return (
    <>
      <a href={address} title={address} target="_blank" rel="noreferrer noopener">
        <Spans spans={spans} />
      </a>
      {!saysIt && (
        <span class="dim">
          <Text text={` (${host})`} />
        </span>
      )}
    </>
  );
}
