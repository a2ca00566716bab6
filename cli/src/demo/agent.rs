//! A small agent: chat completions with a tool, over HTTP, until the game is over.

use hyper::Method;
use serde_json::{Value, json};

use super::game::Game;
use super::tools;
use crate::exit::Failure;
use crate::http::Http;

/// Tokens that one turn may sample; a call to the tool takes six.
const TURN_TOKENS_MAX: u32 = 24;

/// What an agent is told.
#[derive(Debug)]
pub(crate) struct Episode {
    pub(crate) id: String,
    pub(crate) group: String,
    pub(crate) secret: i64,
    pub(crate) proxy: String,
}

/// A game that was played.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) episode: Episode,
    pub(crate) calls: u64,
    pub(crate) reward: f64,
    pub(crate) found: bool,
}

/// Plays one episode.
pub(crate) async fn play(http: &Http, episode: Episode) -> Result<Played, Failure> {
    let mut game = Game::new(episode.secret);
    let mut messages = vec![json!({ "role": "user", "content": Game::prompt() })];
    let mut calls = 0;
    while !game.over() {
        let answer = ask(http, &episode, &messages).await?;
        calls += 1;
        let Some((id, number)) = guess_in(&answer) else { break };
        messages.push(answer);
        let reply = game.guess(number);
        messages.push(json!({ "role": "tool", "tool_call_id": id, "content": reply }));
    }
    Ok(Played { calls, reward: game.reward(), found: game.found(), episode })
}

async fn ask(http: &Http, episode: &Episode, messages: &[Value]) -> Result<Value, Failure> {
    let url = format!("{}/e/{}/v1/chat/completions", episode.proxy, episode.id);
    let headers = [("x-group-id", episode.group.as_str()), ("x-task-id", "guess")];
    let body = json!({
        "model": "tiny",
        "messages": messages,
        "tools": tools(),
        "temperature": 1.0,
        "max_tokens": TURN_TOKENS_MAX,
    });
    let (status, mut reply) = http.json(Method::POST, &url, &headers, &body).await?;
    if status != 200 {
        return Err(Failure::new(format!("{url} answered {status}: {reply}")));
    }
    Ok(reply["choices"][0]["message"].take())
}

/// The id of the first tool call, and the number it guesses.
fn guess_in(answer: &Value) -> Option<(String, i64)> {
    let call = answer["tool_calls"].get(0)?;
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str()?).ok()?;
    let is_guess = call["function"]["name"] == "guess";
    Some((call["id"].as_str()?.to_owned(), arguments["n"].as_i64().filter(|_| is_guess)?))
}
