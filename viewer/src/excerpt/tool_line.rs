//! A tool and its task, in one line: its name, and the argument that says most.

use serde_json::Value;

/// Arguments that say most, the first one that is there. The page has the same list.
const PRINCIPAL: [&str; 12] = [
    "command",
    "cmd",
    "query",
    "pattern",
    "url",
    "file_path",
    "path",
    "notebook_path",
    "filename",
    "code",
    "prompt",
    "description",
];
const SHELLS: [&str; 4] = ["sh", "bash", "zsh", "dash"];

/// The line of a call of a tool, such as `bash ls -la`; `None` where it names no tool.
pub(super) fn tool_line(call: &Value) -> Option<String> {
    let function = call.get("function")?;
    let name = function.get("name")?.as_str()?;
    let given = function.get("arguments").and_then(Value::as_str).unwrap_or_default();
    let about = match serde_json::from_str::<Value>(given) {
        Ok(arguments) => principal(&arguments),
        Err(_) => given.to_owned(),
    };
    Some(format!("{name} {about}").trim_end().to_owned())
}

/// The argument that says most; all of them if none is known to.
fn principal(arguments: &Value) -> String {
    let known = PRINCIPAL.iter().filter_map(|name| words(arguments.get(name)?));
    if let Some(text) = known.into_iter().find(|text| !text.trim().is_empty()) {
        return text;
    }
    match arguments {
        Value::Object(named) if named.is_empty() => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A text, or a command as a list of words. `bash -lc` says less than what it runs.
fn words(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let list: Vec<&str> = value.as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
    let said = match list.as_slice() {
        [shell, option, rest @ ..]
            if SHELLS.contains(&shell.rsplit('/').next().unwrap_or_default())
                && option.starts_with('-')
                && option.ends_with('c') =>
        {
            rest
        }
        all => all,
    };
    Some(said.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_is_its_name_and_what_it_was_asked() {
        for (name, arguments, line) in [
            ("bash", json!({ "description": "List", "command": "ls -la" }), "bash ls -la"),
            ("shell", json!({ "command": ["/bin/bash", "-lc", "ls"] }), "shell ls"),
            ("read", json!({ "path": "a.py", "limit": 3 }), "read a.py"),
            ("guess", json!({ "n": 3 }), "guess {\"n\":3}"),
            ("stop", json!({}), "stop"),
        ] {
            let function = json!({ "name": name, "arguments": arguments.to_string() });
            let found = tool_line(&json!({ "function": function }));
            assert_eq!(found.as_deref(), Some(line));
        }
        let cut = json!({ "function": { "name": "bash", "arguments": "{\"comm" } });
        assert_eq!(tool_line(&cut).as_deref(), Some("bash {\"comm"));
        assert_eq!(tool_line(&json!({ "type": "custom" })), None);
    }
}
