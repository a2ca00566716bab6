//! A small agent that plays the game over HTTP, by chat completions with a tool.

use hyper::Method;
use serde_json::{Value, json};

use super::game::Game;
use super::tools;
use crate::exit::Failure;
use crate::http::Http;

/// Maximum tokens of one turn; a call of the tool takes six.
const TURN_TOKENS_MAX: u32 = 24;

/// An episode to play.
#[derive(Debug)]
pub(crate) struct GameEpisode {
    pub(crate) id: String,
    pub(crate) group: String,
    pub(crate) secret: i64,
    /// URL of the data listener.
    pub(crate) proxy: String,
}

/// An episode that was played.
#[derive(Debug)]
pub(crate) struct PlayedEpisode {
    pub(crate) episode: GameEpisode,
    pub(crate) calls: u64,
    pub(crate) reward: f64,
    pub(crate) found: bool,
}

/// Plays one episode.
pub(crate) async fn play(http: &Http, episode: GameEpisode) -> Result<PlayedEpisode, Failure> {
    let mut game = Game::new(episode.secret);
    let mut messages = vec![json!({ "role": "user", "content": Game::prompt() })];
    let mut calls = 0;

    while !game.is_over() {
        let message = ask(http, &episode, &messages).await?;
        calls += 1;
        // A reply without a tool call ends the game: the model has nothing to guess.
        let Some((id, number)) = guess_in(&message) else { break };
        messages.push(message);
        let answer = game.guess(number);
        messages.push(json!({ "role": "tool", "tool_call_id": id, "content": answer }));
    }
    Ok(PlayedEpisode { calls, reward: game.reward(), found: game.found(), episode })
}

async fn ask(http: &Http, episode: &GameEpisode, messages: &[Value]) -> Result<Value, Failure> {
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
fn guess_in(message: &Value) -> Option<(String, i64)> {
    let call = message["tool_calls"].get(0)?;
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str()?).ok()?;
    let is_guess = call["function"]["name"] == "guess";
    Some((call["id"].as_str()?.to_owned(), arguments["n"].as_i64().filter(|_| is_guess)?))
}
