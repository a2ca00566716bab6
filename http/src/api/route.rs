//! A table of routes: the dispatch, the replies 404 and 405 and the documents are made from it.

use hyper::Method;

use crate::api::schema::Field;
use crate::api::suggest::nearest;

/// The fields of a JSON body.
#[derive(Debug, Clone, Copy)]
pub enum BodyFields {
    /// Those of the type that it is deserialized into.
    OfType(fn() -> Vec<Field>),
    /// Groups of them that several routes share.
    Groups(&'static [&'static [Field]]),
}

impl BodyFields {
    /// All fields.
    pub fn list(self) -> Vec<Field> {
        match self {
            Self::OfType(fields) => fields(),
            Self::Groups(groups) => groups.concat(),
        }
    }
}

/// A route of a listener. `H` says who answers it.
#[derive(Debug, Clone, Copy)]
pub struct Route<H> {
    /// The methods that it takes.
    pub methods: &'static [&'static str],
    /// The path. `{name}` is a parameter of one segment; `{*name}` may hold slashes.
    pub path: &'static str,
    /// The handler that answers it.
    pub handler: H,
    /// The group in the documents.
    pub group: &'static str,
    /// One sentence for the documents.
    pub summary: &'static str,
    /// The parameters of the query.
    pub query: &'static [Field],
    /// The fields of the JSON body, if the route takes one.
    pub body: Option<BodyFields>,
    /// The content type of a body that the route takes beside JSON, or in place of it.
    pub other_body: Option<&'static str>,
    /// The content of a 200 reply, for the documents.
    pub reply: &'static str,
    /// Further replies that are no errors: each status with its meaning.
    pub other_replies: &'static [(u16, &'static str)],
}

impl<H: Copy> Route<H> {
    /// The route with these parameters of the query.
    pub const fn query(self, query: &'static [Field]) -> Self {
        Self { query, ..self }
    }

    /// The route with the fields of a type as those of the body.
    pub const fn body(self, fields: fn() -> Vec<Field>) -> Self {
        Self { body: Some(BodyFields::OfType(fields)), ..self }
    }

    /// The route with these groups of fields of the body.
    pub const fn fields(self, groups: &'static [&'static [Field]]) -> Self {
        Self { body: Some(BodyFields::Groups(groups)), ..self }
    }

    /// The route with these methods.
    pub const fn methods(self, methods: &'static [&'static str]) -> Self {
        Self { methods, ..self }
    }

    /// The route with bodies of this content type, too.
    pub const fn other_body(self, content_type: &'static str) -> Self {
        Self { other_body: Some(content_type), ..self }
    }

    /// The route with this content of a 200 reply.
    pub const fn reply(self, reply: &'static str) -> Self {
        Self { reply, ..self }
    }
}

impl<H> Route<H> {
    /// A route without parameters, body and group.
    pub const fn new(
        methods: &'static [&'static str],
        path: &'static str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        Self {
            methods,
            path,
            handler,
            group: "",
            summary,
            query: &[],
            body: None,
            other_body: None,
            reply: "",
            other_replies: &[],
        }
    }

    /// True if the route takes a method.
    pub fn takes(&self, method: &Method) -> bool {
        self.methods.contains(&method.as_str())
    }

    /// The names of the parameters of the query.
    pub fn query_names(&self) -> Vec<&'static str> {
        self.query.iter().map(|field| field.name).collect()
    }

    /// The value of the parameter in `path`, or an empty one; `None` if the path is another one.
    /// Slashes at the start and the end do not count.
    pub fn parameter<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (template, path) = (self.path.trim_matches('/'), path.trim_matches('/'));
        let Some((start, name, end)) = split_template(template) else {
            return (template == path).then_some("");
        };
        let value = path.strip_prefix(start)?.strip_suffix(end)?;
        (name.starts_with('*') || !value.contains('/')).then_some(value)
    }

    /// The path as the documents write it.
    pub fn documented_path(&self) -> String {
        self.path.replace("{*", "{")
    }

    /// The name of the parameter in the path.
    pub fn parameter_name(&self) -> Option<&'static str> {
        split_template(self.path).map(|(_, name, _)| name.trim_start_matches('*'))
    }
}

/// A path before, in and behind the braces of its parameter.
fn split_template(path: &str) -> Option<(&str, &str, &str)> {
    let (start, rest) = path.split_once('{')?;
    let (name, end) = rest.split_once('}')?;
    Some((start, name, end))
}

/// The route for a request.
#[derive(Debug)]
pub enum Lookup<'r, H> {
    /// There is one.
    Found {
        /// The route.
        route: &'r Route<H>,
        /// The value of the path's parameter; empty if it has none.
        parameter: String,
    },
    /// The path has other methods.
    WrongMethod(Vec<&'static str>),
    /// The path is unknown.
    Unknown,
}

/// Looks up the route for a request. Of two that have the path, the first is taken.
pub fn find<'r, H>(
    routes: impl IntoIterator<Item = &'r Route<H>>,
    method: &Method,
    path: &str,
) -> Lookup<'r, H> {
    let mut others: Vec<&str> = Vec::new();
    for route in routes {
        let Some(parameter) = route.parameter(path) else { continue };
        if route.takes(method) {
            return Lookup::Found { route, parameter: parameter.to_owned() };
        }
        others.extend(route.methods);
    }
    match others.is_empty() {
        true => Lookup::Unknown,
        false => Lookup::WrongMethod(others),
    }
}

/// The path of a route that is most similar to `path`, with the parameter of `path` in its place.
pub fn similar_path<'r, H: 'r>(
    routes: impl IntoIterator<Item = &'r Route<H>>,
    path: &str,
) -> Option<String> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let filled = |route: &Route<H>| {
        let template: Vec<&str> = route.path.trim_matches('/').split('/').collect();
        let pairs = template.iter().zip(&segments);
        let filled = pairs.map(|(of_route, given)| match of_route.starts_with('{') {
            true => given,
            false => of_route,
        });
        let filled = filled.fold(String::new(), |path, segment| format!("{path}/{segment}"));
        (template.len() == segments.len()).then_some(filled)
    };
    let known: Vec<String> = routes.into_iter().filter_map(filled).collect();
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    nearest(path, &names).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    static ROUTES: [Route<u8>; 5] = [
        Route::new(&["GET"], "/episodes", 0, ""),
        Route::new(&["POST", "PUT"], "/episodes", 1, ""),
        Route::new(&["POST"], "/episodes/{id}/close", 2, ""),
        Route::new(&["GET"], "/models/{*name}", 3, ""),
        Route::new(&["GET"], "/v1", 4, ""),
    ];

    fn found(method: Method, path: &str) -> String {
        match find(&ROUTES, &method, path) {
            Lookup::Found { route, parameter } => format!("{} {parameter}", route.handler),
            Lookup::WrongMethod(methods) => format!("use {}", methods.join(", ")),
            Lookup::Unknown => {
                format!("like {}", similar_path(&ROUTES, path).unwrap_or_default())
            }
        }
    }

    #[test]
    fn a_request_finds_its_route() {
        assert_eq!(found(Method::GET, "/episodes"), "0 ");
        assert_eq!(found(Method::PUT, "//episodes/"), "1 ");
        assert_eq!(found(Method::POST, "/episodes/a/close"), "2 a");
        assert_eq!(found(Method::GET, "/models/org/name"), "3 org/name");
    }

    #[test]
    fn a_request_without_a_route_is_told_which_may_be_meant() {
        assert_eq!(found(Method::DELETE, "/episodes"), "use GET, POST, PUT");
        assert_eq!(found(Method::POST, "/episodes/a/clos"), "like /episodes/a/close");
        assert_eq!(found(Method::POST, "/episodes/a/b/close"), "like ");
        assert_eq!(found(Method::GET, "/nothing/of/it"), "like ");
    }

    #[test]
    fn a_template_has_one_parameter() {
        assert_eq!(ROUTES[3].documented_path(), "/models/{name}");
        assert_eq!(ROUTES[3].parameter_name(), Some("name"));
        assert_eq!(ROUTES[0].parameter_name(), None);
    }
}
