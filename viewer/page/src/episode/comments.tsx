/** What people say of an attempt or of one call of it, and the form to say it. */

import { createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import { AskError, say } from "../api/client";
import { FILE } from "../api/file";
import { canWrite, giveWriting } from "../api/token";
import type { Comment, Tree } from "../api/types";
import { Text } from "../parts/text";
import { decimal, time } from "../words/format";

const AUTHOR = "rolltape-author";

/** Reads the episode again, after something was said of it. */
export const ReloadContext = createContext<() => void>(() => {});

/** Shows the comments on a call, or on the attempt where `call` is null. */
export function Comments({ tree, call }: { tree: Tree; call: string | null }) {
  const [isOpen, setOpen] = useState(false);
  const comments = (tree.comments ?? []).filter((each) => each.call_id === call);
  // A file has no listener to write to.
  if (FILE && comments.length === 0) return null;
  return (
    <div class="comments">
      {comments.map((comment, at) => (
        <Said key={at} comment={comment} />
      ))}
      {!FILE &&
        (isOpen ? (
          <Form tree={tree} call={call} close={() => setOpen(false)} />
        ) : (
          <button class="quiet" onClick={() => setOpen(true)}>
            {call ? "comment" : "comment on the attempt"}
          </button>
        ))}
    </div>
  );
}

function Said({ comment }: { comment: Comment }) {
  const { author, score, text, given_at, given_by, given_from, key_name } = comment;
  const given = [given_by ?? "not recorded", key_name, given_from].filter(Boolean).join(", ");
  return (
    <div class="comment">
      <b>
        <Text text={author} />
      </b>{" "}
      {score !== null && <span class="score">{`scores ${decimal(score)} `}</span>}
      <span class="dim" title={`given by ${given}`}>
        {time(given_at)}
      </span>
      {text !== null && (
        <div class="comment-text">
          <Text text={text} />
        </div>
      )}
    </div>
  );
}

interface FormProps {
  tree: Tree;
  call: string | null;
  close(): void;
}

function Form({ tree, call, close }: FormProps) {
  const reload = useContext(ReloadContext);
  const [text, setText] = useState("");
  const [score, setScore] = useState("");
  const [author, setAuthor] = useState(kept);
  const [token, setToken] = useState("");
  const [needsToken, setNeedsToken] = useState(!canWrite());
  const [error, setError] = useState<string | null>(null);
  const isReady = (text.trim() || score) && author.trim() && (!needsToken || token.trim());

  const send = async () => {
    if (needsToken) giveWriting(token.trim());
    const { episode_id, attempt } = tree.episode;
    const comment = {
      episode_id,
      attempt,
      author: author.trim(),
      ...(call && { call_id: call }),
      ...(text.trim() && { text }),
      ...(score && { score: Number(score) }),
    };
    try {
      await say("annotations", { comments: [comment] });
    } catch (why) {
      if (why instanceof AskError && [401, 403].includes(why.status ?? 0)) {
        giveWriting(null);
        setNeedsToken(true);
      }
      setError((why as Error).message);
      return;
    }
    keep(author.trim());
    close();
    reload();
  };
  return (
    <form
      class="comment-form"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <textarea
        aria-label="comment"
        placeholder="comment"
        rows={3}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <input
        type="number"
        step="any"
        aria-label="score"
        placeholder="score"
        value={score}
        onInput={(event) => setScore(event.currentTarget.value)}
      />
      <input
        aria-label="your name"
        placeholder="your name"
        maxLength={200}
        value={author}
        onInput={(event) => setAuthor(event.currentTarget.value)}
      />
      {needsToken && (
        <input
          type="password"
          autocomplete="off"
          aria-label="token to write"
          placeholder="the listener's token"
          title="Writing needs the control listener's own token. This tab forgets it when it closes."
          value={token}
          onInput={(event) => setToken(event.currentTarget.value)}
        />
      )}
      <button disabled={!isReady}>save</button>
      <button type="button" class="quiet" onClick={close}>
        cancel
      </button>
      {error && (
        <p class="error" role="alert">
          <Text text={error} />
        </p>
      )}
    </form>
  );
}

function kept(): string {
  try {
    return localStorage.getItem(AUTHOR) ?? "";
  } catch {
    return "";
  }
}

function keep(author: string): void {
  try {
    localStorage.setItem(AUTHOR, author);
  } catch {
    // A browser that keeps nothing asks again.
  }
}
