//! `rolltape show --raw`: prints the recorded bytes of a call.

use serde_json::json;

use super::super::source::Source;
use super::call::text;
use crate::exit::Failure;
use crate::print;
use crate::terminal::{Line, Style};

/// Prints the bodies of a call: what the agent sent, and what it received.
pub(super) async fn print(source: &Source, id: &str, as_json: bool) -> Result<(), Failure> {
    let (request, reply) = source.bodies(id).await?;
    if as_json {
        let document = json!({ "call_id": id, "request": text(&request), "reply": text(&reply) });
        return print::line(&document.to_string());
    }
    for (name, body) in [("request", request), ("reply", reply)] {
        let heading = format!("--- {name} of {id}, {} bytes", body.len());
        print::styled(&Line::styled(Style::Dim, heading))?;
        text(&body).lines().try_for_each(print::line)?;
    }
    Ok(())
}
