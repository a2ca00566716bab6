//! The OpenAPI document of the engine, and the list of routes in `docs/engine.md`.

use http::api::openapi::{self, Interface};
use serde_json::{Value, json};

use super::route::EngineRoute;

/// Writes the routes as an OpenAPI 3.1 document.
pub(super) fn document(routes: &[EngineRoute]) -> Value {
    let interface = Interface {
        title: "rolltape engine",
        error: error_schema(),
        may_need_token: false,
        is_strict: false,
        lists_groups: true,
    };
    openapi::document(&interface, routes)
}

/// Returns the schema of an error: OpenAI's form, Anthropic's on its routes, or SGLang's for an
/// update of the weights that failed.
fn error_schema() -> Value {
    let text = json!({"type": "string"});
    let word_or_null = json!({"type": ["string", "null"]});
    let openai = object(
        &["message", "type", "param", "code"],
        json!({"message": text, "type": text, "param": word_or_null, "code": {"type": "integer"}}),
    );
    let anthropic = object(&["message", "type"], json!({"message": text, "type": text}));
    json!({"anyOf": [
        object(&["error"], json!({"error": openai})),
        object(&["type", "error"], json!({"type": {"const": "error"}, "error": anthropic})),
        object(&["success", "message"], json!({"success": {"const": false}, "message": text})),
    ]})
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::routes::documented;
    use super::*;

    const START: &str = "<!-- routes -->\n";
    const END: &str = "<!-- /routes -->\n";

    /// Writes the routes as tables in Markdown, one for each group.
    fn markdown() -> String {
        let (mut page, mut group) = (String::new(), "");
        for route in documented() {
            if route.group != group {
                group = route.group;
                page += &format!("\n**{group}**\n\n| route | |\n| --- | --- |\n");
            }
            let query: Vec<String> =
                route.query.iter().map(|field| format!("{}=", field.name)).collect();
            let query = match query.is_empty() {
                true => String::new(),
                false => format!("?{}", query.join("&")),
            };
            let (methods, path) = (route.methods.join(", "), route.documented_path());
            page += &format!("| `{methods} {path}{query}` | {} |\n", route.summary);
        }
        page + "\n"
    }

    /// `UPDATE_DOCS=1 cargo test -p engine openapi` writes the list.
    #[test]
    fn the_page_lists_all_routes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/engine.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(START).expect("the list has a start");
        let (listed, after) = rest.split_once(END).expect("the list has an end");
        let expected = markdown();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, format!("{before}{START}{expected}{END}{after}")).unwrap();
        } else {
            assert_eq!(listed, expected, "run with UPDATE_DOCS=1");
        }
    }

    #[test]
    fn every_route_is_one_operation_of_its_own() {
        let document = document(&documented());
        let paths = document["paths"].as_object().unwrap();
        let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
        let ids: Vec<&str> =
            operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), documented().iter().map(|route| route.methods.len()).sum::<usize>());
        assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len());

        let chat = &document["paths"]["/v1/chat/completions"]["post"];
        let fields = &chat["requestBody"]["content"]["application/json"]["schema"]["properties"];
        assert_eq!(fields["temperature"], json!({"type": ["number", "null"]}));
        assert_eq!(fields["messages"], json!({"type": ["array", "null"]}));
        assert!(fields.get("stop_regex").is_none(), "it is refused");
    }
}
