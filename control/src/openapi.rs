//! The OpenAPI document of the control listener, and the tables of `docs/control.md`.

use serde_json::{Map, Value, json};

use crate::api::schema::Field;
use crate::routes::{ControlRoute, Handler, ROUTES};

/// The routes as an OpenAPI 3.1 document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES.iter() {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        item[route.method.to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "rolltape control listener",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": { "Error": error_schema() },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        // The token is optional: it is required if the listener was started with one.
        "security": [{ "token": [] }, {}],
    })
}

fn operation(route: &ControlRoute) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [tag(route)],
        "summary": route.summary,
        "responses": {
            "200": { "description": route.reply },
            "default": {
                "description": "an error",
                "content": {
                    "application/json": { "schema": { "$ref": "#/components/schemas/Error" } },
                },
            },
        },
    });

    if route.handler == Handler::Feed {
        operation["responses"]["204"] = json!({ "description": "nothing became ready in time" });
    }

    // An empty list of parameters is left out.
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(fields) = route.body {
        operation["requestBody"] = json!({
            "content": { "application/json": { "schema": body_schema(&fields()) } },
        });
    }
    operation
}

/// A name of the operation for generated clients: the method and the words of the path.
fn operation_id(route: &ControlRoute) -> String {
    let name = route
        .path
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .fold(String::new(), |name, word| format!("{name}_{word}"));
    format!("{}{name}", route.method.to_ascii_lowercase())
}

fn tag(route: &ControlRoute) -> &'static str {
    match route.handler {
        Handler::Engine(route) => route.server.name(),
        _ => "rolltape",
    }
}

fn parameters(route: &ControlRoute) -> Vec<Value> {
    let in_path = route.path.split('{').skip(1).filter_map(|part| part.split('}').next());
    let path_parameters = in_path.map(|name| {
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let query_parameters =
        route.query.iter().map(|name| json!({ "name": name, "in": "query", "schema": {} }));
    path_parameters.chain(query_parameters).collect()
}

fn body_schema(fields: &[Field]) -> Value {
    let mut properties = Map::new();
    for field in fields {
        let schema = match field.json_type {
            Some(json_type) if field.is_nullable => json!({ "type": [json_type, "null"] }),
            Some(json_type) => json!({ "type": json_type }),
            None => json!({}),
        };
        properties.insert(field.name.to_owned(), schema);
    }
    let required = fields.iter().filter(|field| field.is_required);
    json!({
        "type": "object",
        "properties": properties,
        "required": required.map(|field| field.name).collect::<Vec<_>>(),
        "additionalProperties": false,
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": { "type": "string" },
                    "code": { "type": "integer" },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wire::EngineServer;

    use super::*;

    const START: &str = "<!-- routes -->\n";
    const END: &str = "<!-- /routes -->";

    /// The tables of the page: rolltape's own routes, and those of the upstream by its server.
    fn tables() -> String {
        let mut tables = "| route | fields of the body | does |\n| --- | --- | --- |\n".to_owned();
        let is_own = |route: &&ControlRoute| !matches!(route.handler, Handler::Engine(_));
        for route in ROUTES.iter().filter(is_own) {
            let fields = route.body.map_or_else(Vec::new, |fields| fields());
            let fields: Vec<_> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
            let (method, path, summary) = (route.method, route.path, route.summary);
            tables += &format!("| `{method} {path}` | {} | {summary} |\n", fields.join(", "));
        }
        tables += "\n| server | control routes that are forwarded |\n| --- | --- |\n";
        for server in EngineServer::ALL {
            let of_server = ROUTES.iter().filter(|route| tag(route) == server.name());
            let paths: Vec<_> = of_server.map(|route| format!("`{}`", route.path)).collect();
            tables += &format!("| {} | {} |\n", server.name(), paths.join(", "));
        }
        tables
    }

    /// `UPDATE_DOCS=1 cargo test -p control openapi` writes the tables.
    #[test]
    fn the_page_lists_every_route() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/control.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, after) = page.split_once(START).expect("the tables have a start");
        let (listed, rest) = after.split_once(END).expect("the tables have an end");
        let made = tables();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, format!("{before}{START}{made}{END}{rest}")).unwrap();
        } else {
            assert_eq!(listed, made, "run with UPDATE_DOCS=1");
        }
    }

    #[test]
    fn the_document_has_every_route_with_its_parameters_and_fields() {
        let document = document();
        for route in ROUTES.iter() {
            let operation = &document["paths"][route.path][route.method.to_ascii_lowercase()];
            assert_eq!(operation["summary"], route.summary, "{}", route.path);
        }
        let close = &document["paths"]["/episodes/{id}/close"]["post"];
        let names: Vec<_> =
            close["parameters"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
        assert_eq!(names, ["id", "attempt"]);
        let schema = &close["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(schema["properties"]["status"]["type"], json!(["string", "null"]));
        let reward = &document["paths"]["/episodes/{id}/rewards"]["post"]["requestBody"];
        let schema = &reward["content"]["application/json"]["schema"];
        assert_eq!(schema["required"], json!(["value"]));
        assert_eq!(document["openapi"], "3.1.0");
    }
}
