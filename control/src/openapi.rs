//! The OpenAPI document of the control listener, and the tables of `docs/control.md`.

use http::api::openapi::{self, Interface};
use serde_json::{Value, json};

use crate::routes::ROUTES;

/// The routes as an OpenAPI 3.1 document.
pub(crate) fn document() -> Value {
    let message = json!({ "message": { "type": "string" }, "code": { "type": "integer" } });
    let error = json!({ "type": "object", "properties": message });
    let interface = Interface {
        title: "rolltape control listener",
        error: json!({ "type": "object", "properties": { "error": error } }),
        may_need_token: true,
        is_strict: true,
        lists_groups: false,
    };
    openapi::document(&interface, ROUTES.iter())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::api::route::BodyFields;
    use wire::EngineServer;

    use super::*;
    use crate::routes::{ControlRoute, Handler};

    const START: &str = "<!-- routes -->\n";
    const END: &str = "<!-- /routes -->";

    /// The tables of the page: rolltape's own routes, and those of the upstream by its server.
    fn tables() -> String {
        let mut tables = "| route | fields of the body | does |\n| --- | --- | --- |\n".to_owned();
        let is_own = |route: &&ControlRoute| !matches!(route.handler, Handler::Engine(_));
        for route in ROUTES.iter().filter(is_own) {
            let fields = route.body.map_or_else(Vec::new, BodyFields::list);
            let fields: Vec<_> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
            let (method, path, summary) = (route.methods.join(", "), route.path, route.summary);
            tables += &format!("| `{method} {path}` | {} | {summary} |\n", fields.join(", "));
        }
        tables += "\n| server | control routes that are forwarded |\n| --- | --- |\n";
        for server in EngineServer::ALL {
            let of_server = ROUTES.iter().filter(|route| route.group == server.name());
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
            let operation = &document["paths"][route.path][route.methods[0].to_ascii_lowercase()];
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
