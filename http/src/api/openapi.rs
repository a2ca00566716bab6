//! The OpenAPI document of a table of routes.

use serde_json::{Map, Value, json};

use crate::api::route::{BodyFields, Route};
use crate::api::schema::Field;

/// The parts of a listener's document beside its routes.
#[derive(Debug, Clone)]
pub struct Interface {
    /// The name of the listener.
    pub title: &'static str,
    /// The schema of an error.
    pub error: Value,
    /// True if the document says that a token may be required.
    pub may_need_token: bool,
    /// True if a body may have no other fields than those that are listed.
    pub is_strict: bool,
    /// True if the document lists the groups of routes, in their order.
    pub lists_groups: bool,
}

/// The routes as an OpenAPI 3.1 document.
pub fn document<'r, H: 'r>(
    interface: &Interface,
    routes: impl IntoIterator<Item = &'r Route<H>>,
) -> Value {
    let mut groups: Vec<&str> = Vec::new();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        if !groups.contains(&route.group) {
            groups.push(route.group);
        }
        // Two routes may have one path, with other methods.
        let item = paths.entry(route.documented_path()).or_insert_with(|| json!({}));
        for method in route.methods {
            item[method.to_ascii_lowercase()] = operation(interface, route, method);
        }
    }

    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": interface.title,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": { "Error": interface.error } },
    });
    if interface.lists_groups {
        document["tags"] = groups.iter().map(|name| json!({ "name": name })).collect();
    }
    if interface.may_need_token {
        document["components"]["securitySchemes"] =
            json!({ "token": { "type": "http", "scheme": "bearer" } });
        // The token is optional: it is required if the listener was started with one.
        document["security"] = json!([{ "token": [] }, {}]);
    }
    document
}

fn operation<H>(interface: &Interface, route: &Route<H>, method: &str) -> Value {
    let error =
        json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } });
    let mut operation = json!({
        "operationId": operation_id(route.path, method),
        "tags": [route.group],
        "summary": route.summary,
        "responses": {
            "200": { "description": route.reply },
            "default": { "description": "an error", "content": error },
        },
    });
    for (status, description) in route.other_replies {
        operation["responses"][status.to_string()] = json!({ "description": description });
    }

    // An empty list of parameters is left out.
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(content) = request_content(interface, route).filter(|_| method != "GET") {
        operation["requestBody"] = json!({ "content": content });
    }
    operation
}

/// A name of the operation for generated clients: the method and the words of the path.
fn operation_id(path: &str, method: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.to_ascii_lowercase(), |id, word| format!("{id}_{word}"))
}

fn parameters<H>(route: &Route<H>) -> Vec<Value> {
    let in_path = route.parameter_name().map(|name| {
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let in_query = route
        .query
        .iter()
        .map(|field| json!({ "name": field.name, "in": "query", "schema": field_schema(field) }));
    in_path.into_iter().chain(in_query).collect()
}

fn request_content<H>(interface: &Interface, route: &Route<H>) -> Option<Value> {
    let fields = route.body.map(BodyFields::list);
    if fields.is_none() && route.other_body.is_none() {
        return None;
    }
    let mut content = Map::new();
    if let Some(fields) = fields {
        let schema = body_schema(interface, &fields);
        content.insert("application/json".to_owned(), json!({ "schema": schema }));
    }
    if let Some(other) = route.other_body {
        content.insert(other.to_owned(), json!({}));
    }
    Some(Value::Object(content))
}

fn body_schema(interface: &Interface, fields: &[Field]) -> Value {
    let taken = fields.iter().filter(|field| !field.is_refused);
    let properties = taken.map(|field| (field.name.to_owned(), field_schema(field)));
    let required = fields.iter().filter(|field| field.is_required);
    let mut schema = json!({
        "type": "object",
        "properties": properties.collect::<Map<_, _>>(),
        "required": required.map(|field| field.name).collect::<Vec<_>>(),
    });
    if interface.is_strict {
        schema["additionalProperties"] = json!(false);
    }
    schema
}

fn field_schema(field: &Field) -> Value {
    match field.json_type {
        Some(json_type) if field.is_nullable => json!({ "type": [json_type, "null"] }),
        Some(json_type) => json!({ "type": json_type }),
        None => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn fields() -> Vec<Field> {
        let value = Field { is_nullable: false, is_required: true, ..Field::number("value") };
        vec![value, Field::string("name")]
    }

    static ROUTES: [Route<()>; 3] = [
        Route {
            group: "a",
            query: &[Field::any("attempt")],
            body: Some(BodyFields::OfType(fields)),
            ..Route::new(&["POST"], "/episodes/{id}/rewards", (), "adds a reward")
        },
        Route { group: "b", ..Route::new(&["GET", "POST"], "/models/{*name}", (), "a model") },
        Route { group: "a", other_body: Some("a/b"), ..Route::new(&["PUT"], "/file", (), "") },
    ];

    fn interface(is_strict: bool) -> Interface {
        let error = json!({});
        Interface { title: "t", error, may_need_token: is_strict, is_strict, lists_groups: true }
    }

    #[test]
    fn every_route_is_an_operation_with_its_fields() {
        let document = document(&interface(true), &ROUTES);
        assert_eq!(document["tags"], json!([{ "name": "a" }, { "name": "b" }]));
        assert_eq!(document["security"], json!([{ "token": [] }, {}]));
        let reward = &document["paths"]["/episodes/{id}/rewards"]["post"];
        assert_eq!(reward["parameters"][0]["name"], "id");
        assert_eq!(reward["parameters"][1]["schema"], json!({}));
        let schema = &reward["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(schema["properties"]["name"], json!({ "type": ["string", "null"] }));
        assert_eq!(schema["properties"]["value"], json!({ "type": "number" }));
        assert_eq!(schema["required"], json!(["value"]));
        assert_eq!(schema["additionalProperties"], false);
        let file = &document["paths"]["/file"]["put"]["requestBody"]["content"];
        assert_eq!(*file, json!({ "a/b": {} }));
    }

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        let document = document(&interface(false), &ROUTES);
        assert!(document.get("security").is_none());
        let paths = document["paths"].as_object().unwrap();
        let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
        let ids: Vec<&str> =
            operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        assert_eq!(
            ids,
            ["post_episodes_id_rewards", "get_models_name", "post_models_name", "put_file"]
        );
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    }
}
