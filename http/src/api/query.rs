//! Queries: parameters behind the path of a request.

use crate::api::BadRequest;
use crate::api::suggest::unknown_name;
use crate::path::escapes::form_decoded;

/// The decoded parameters of a query, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
    /// The names that are followed by `=` and nothing.
    emptied: Vec<String>,
}

impl Query {
    /// Decodes a query. Each parameter may be there once.
    ///
    /// # Errors
    /// [`BadRequest`] that names a parameter that is there twice.
    pub fn parse(query: Option<&str>) -> Result<Self, BadRequest> {
        Self::with_lists(query, &[])
    }

    /// Decodes a query in which the parameters `lists` may be repeated, and no other.
    ///
    /// # Errors
    /// [`BadRequest`] that names another parameter that is there twice.
    pub fn with_lists(query: Option<&str>, lists: &[&str]) -> Result<Self, BadRequest> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        let mut emptied = Vec::new();
        for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (form_decoded(name), form_decoded(value));
            let is_repeated = parameters.iter().any(|(other, _)| *other == name);
            if is_repeated && !lists.contains(&name.as_str()) {
                return Err(BadRequest(format!("`{name}` is given twice")));
            }
            if pair.ends_with('=') && value.is_empty() {
                emptied.push(name.clone());
            }
            parameters.push((name, value));
        }
        Ok(Self { pairs: parameters, emptied })
    }

    /// Refuses a parameter that is not among `known`.
    ///
    /// # Errors
    /// [`BadRequest`] with the known name that may be meant.
    pub fn check_known(&self, known: &[&str]) -> Result<(), BadRequest> {
        match self.pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(BadRequest(unknown_name("a parameter", name, known))),
            None => Ok(()),
        }
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter that may be repeated.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The value of a flag, or `default` if it is absent. A name alone is true.
    ///
    /// # Errors
    /// As those of [`flag`], and [`BadRequest`] for a name with `=` and nothing behind it.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, BadRequest> {
        if self.emptied.iter().any(|emptied| emptied == name) {
            return Err(no_flag(name));
        }
        self.get(name).map_or(Ok(default), |text| flag(name, text))
    }

    /// The parameters as pairs of name and value.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }
}

/// Reads the flag `name`: true for nothing and for the words that pydantic, by which vLLM reads its
/// queries, takes for true (`true`, `1`, `on`, `yes` ...), in any case; false for their opposites.
///
/// # Errors
/// [`BadRequest`] for any other text.
pub fn flag(name: &str, text: &str) -> Result<bool, BadRequest> {
    const TRUE: [&str; 7] = ["", "true", "1", "on", "yes", "t", "y"];
    const FALSE: [&str; 6] = ["false", "0", "off", "no", "f", "n"];
    let is_one = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));

    match (is_one(&TRUE), is_one(&FALSE)) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(no_flag(name)),
    }
}

fn no_flag(name: &str) -> BadRequest {
    BadRequest(format!("`{name}` is not true or false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_name_a_parameter_once() {
        let read = |query| Query::parse(Some(query)).unwrap().pairs;
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            read("kind=main%2Cfork&a=b+c&d"),
            [pair("kind", "main,fork"), pair("a", "b c"), pair("d", "")]
        );
        assert_eq!(read("a=%zz%4"), [pair("a", "%zz%4")]);
        assert_eq!(Query::parse(None).unwrap(), Query::default());
        assert!(Query::parse(Some("a=1&%61=2")).unwrap_err().0.contains("given twice"));
    }

    #[test]
    fn only_a_list_may_be_repeated() {
        let query = Query::with_lists(Some("tags=a&tags=b&x=1"), &["tags"]).unwrap();
        assert_eq!(query.all("tags").collect::<Vec<_>>(), ["a", "b"]);
        assert!(Query::with_lists(Some("x=1&x=1"), &["tags"]).is_err());
    }

    #[test]
    fn a_flag_is_true_or_false_and_nothing_else() {
        let query = "a&b=true&c=1&d=Yes&e=True&f=false&g=0&i=False&j=maybe&k=2&l=";
        let query = Query::parse(Some(query)).unwrap();
        let flag = |name| query.flag(name, false);
        assert!(["a", "b", "c", "d", "e"].iter().all(|name| flag(name) == Ok(true)));
        assert!(["f", "g", "i"].iter().all(|name| query.flag(name, true) == Ok(false)));
        assert!(["j", "k", "l"].iter().all(|name| flag(name).is_err()));
        assert_eq!((flag("h"), query.flag("h", true)), (Ok(false), Ok(true)));
    }

    #[test]
    fn an_unknown_parameter_is_refused_with_the_nearest_name() {
        let query = |text| Query::parse(Some(text)).unwrap();
        assert!(query("attempt=2").check_known(&["attempt"]).is_ok());
        let misspelled = query("atempt=2").check_known(&["attempt"]);
        assert!(misspelled.unwrap_err().0.contains("did you mean `attempt`?"));
    }
}
