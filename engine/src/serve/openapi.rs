//! Documents made from the table of routes: OpenAPI 3.1, and a list in Markdown.

use serde_json::{Map, Value, json};

use super::http::{Field, FieldKind};
use super::route::{Route, RouteGroup};

/// Writes the routes as an OpenAPI 3.1 document.
pub(super) fn document(groups: &[RouteGroup]) -> Value {
    let mut paths = Map::new();
    for group in groups {
        for route in group.routes {
            // Two routes may have one path, with other methods.
            let operations = paths.entry(route.path).or_insert_with(|| json!({}));
            for method in route.methods {
                let name = method.to_ascii_lowercase();
                operations[name] = operation(group.title, route, method);
            }
        }
    }

    // The tags keep the groups in the order of the table.
    let tags: Vec<Value> = groups.iter().map(|group| json!({"name": group.title})).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "rolltape engine",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": tags,
        "paths": paths,
        "components": {"schemas": {"Error": error_schema()}},
    })
}

fn operation(tag: &str, route: &Route, method: &str) -> Value {
    let error = json!({"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}});
    let mut operation = json!({
        "tags": [tag],
        "operationId": operation_id(route, method),
        "summary": route.summary,
        "responses": {
            "200": {"description": "the reply"},
            "default": {"description": "an error", "content": error},
        },
    });

    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if method != "GET" && (!route.body.fields.is_empty() || route.body.takes_weights) {
        operation["requestBody"] = json!({"content": request_content(route)});
    }
    operation
}

/// Returns an id that no other operation has, such as `post_v1_completions`.
fn operation_id(route: &Route, method: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let words = route.path.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    let mut id = method.to_ascii_lowercase();
    for word in words {
        id.push('_');
        id.push_str(word);
    }
    id
}

fn parameters(route: &Route) -> Vec<Value> {
    let mut parameters = Vec::new();
    let in_path = route.path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    if let Some((name, _)) = in_path {
        let schema = json!({"type": "string"});
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    for field in route.query {
        parameters.push(json!({"name": field.name, "in": "query", "schema": schema_of(field)}));
    }
    parameters
}

fn request_content(route: &Route) -> Value {
    let mut properties = Map::new();
    for field in route.body.fields.iter().copied().flatten() {
        if !field.is_refused() {
            properties.insert(field.name.to_owned(), schema_of(field));
        }
    }
    let schema = json!({"type": "object", "properties": properties});
    let mut content = json!({"application/json": {"schema": schema}});
    if route.body.takes_weights {
        content["application/octet-stream"] = json!({});
    }
    content
}

/// Returns the JSON schema of a field. A null stands for an absent field.
fn schema_of(field: &Field) -> Value {
    let name = match field.kind {
        FieldKind::Any | FieldKind::Refused => return json!({}),
        FieldKind::Array => "array",
        FieldKind::Boolean => "boolean",
        FieldKind::Integer => "integer",
        FieldKind::Number => "number",
        FieldKind::Object => "object",
        FieldKind::String => "string",
    };
    json!({"type": [name, "null"]})
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

    use super::super::routes::ROUTES;
    use super::*;

    const START: &str = "<!-- routes -->\n";
    const END: &str = "<!-- /routes -->\n";

    /// Writes the routes as tables in Markdown.
    fn markdown(groups: &[RouteGroup]) -> String {
        let mut page = String::from("\n");
        for group in groups {
            page += &format!("**{}**\n\n| route | |\n| --- | --- |\n", group.title);
            for route in group.routes {
                let query: Vec<String> =
                    route.query.iter().map(|field| format!("{}=", field.name)).collect();
                let query = match query.is_empty() {
                    true => String::new(),
                    false => format!("?{}", query.join("&")),
                };
                let methods = route.methods.join(", ");
                page += &format!("| `{methods} {}{query}` | {} |\n", route.path, route.summary);
            }
            page.push('\n');
        }
        page
    }

    /// `UPDATE_DOCS=1 cargo test -p engine openapi` writes the list.
    #[test]
    fn the_page_lists_all_routes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/engine.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(START).expect("the list has a start");
        let (listed, after) = rest.split_once(END).expect("the list has an end");
        let expected = markdown(ROUTES);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, format!("{before}{START}{expected}{END}{after}")).unwrap();
        } else {
            assert_eq!(listed, expected, "run with UPDATE_DOCS=1");
        }
    }

    #[test]
    fn every_route_is_one_operation_of_its_own() {
        let document = document(ROUTES);
        let paths = document["paths"].as_object().unwrap();
        let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
        let ids: Vec<&str> =
            operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        let routes = ROUTES.iter().flat_map(|group| group.routes);
        assert_eq!(ids.len(), routes.map(|route| route.methods.len()).sum::<usize>());
        assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len());

        let chat = &document["paths"]["/v1/chat/completions"]["post"];
        let fields = &chat["requestBody"]["content"]["application/json"]["schema"]["properties"];
        assert_eq!(fields["temperature"], json!({"type": ["number", "null"]}));
        assert_eq!(fields["messages"], json!({"type": ["array", "null"]}));
        assert!(fields.get("stop_regex").is_none(), "it is refused");
    }
}
