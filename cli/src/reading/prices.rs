//! `--prices`: a file with the prices of models.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::exit::Failure;

/// Tokens that a price is for.
const TOKENS: f64 = 1e6;
/// Longest name of a currency, in characters.
const CURRENCY_CHARS_MAX: usize = 16;
/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The file of prices.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct PriceArgs {
    /// JSON file with prices of models, for costs
    ///
    /// {"currency": "USD", "models": {"NAME": {"prompt": 1.25, "completion": 10}}}, by a million
    /// tokens. A name that ends in * is the beginning of names.
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_PRICES")]
    prices: Option<PathBuf>,
}

/// Prices by model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prices {
    /// The name of the currency.
    #[serde(deserialize_with = "currency")]
    pub(super) currency: String,
    #[serde(deserialize_with = "models")]
    models: BTreeMap<String, Price>,
}

/// The price of a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Price {
    #[serde(deserialize_with = "amount")]
    prompt: f64,
    #[serde(deserialize_with = "amount")]
    completion: f64,
}

impl PriceArgs {
    /// Reads the file, if there is one.
    pub(super) fn read(&self) -> Result<Option<Prices>, Failure> {
        self.prices.as_deref().map(Prices::read).transpose()
    }
}

impl Prices {
    fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |error: &dyn fmt::Display| {
            Failure::new(format!("--prices: `{}`: {error}", path.display())).hint(
                "it is JSON such as {\"currency\": \"USD\", \"models\": {\"gpt-5*\": \
                 {\"prompt\": 1.25, \"completion\": 10}}}, with prices of a million tokens",
            )
        };
        let length = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
        if length > FILE_BYTES_MAX {
            return Err(failed(&format!("{length} bytes are more than {FILE_BYTES_MAX}")));
        }
        let text = std::fs::read(path).map_err(|error| failed(&error))?;
        serde_json::from_slice(&text).map_err(|error| failed(&error))
    }

    /// The cost of a model's tokens; `None` if the model has no price.
    pub(super) fn cost(&self, model: &str, prompt: u64, completion: u64) -> Option<f64> {
        let price = self.price(model)?;
        Some((price.prompt * prompt as f64 + price.completion * completion as f64) / TOKENS)
    }

    /// The price of the name itself, else of its longest beginning.
    fn price(&self, model: &str) -> Option<&Price> {
        let begins =
            |name: &str| name.strip_suffix('*').is_some_and(|start| model.starts_with(start));
        let beginnings = self.models.iter().filter(|(name, _)| begins(name));
        let longest = || beginnings.max_by_key(|(name, _)| name.len()).map(|(_, price)| price);
        self.models.get(model).or_else(longest)
    }
}

fn currency<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_word = !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c.is_control());
    match is_word && name.chars().count() <= CURRENCY_CHARS_MAX {
        true => Ok(name),
        false => Err(D::Error::custom(format!(
            "`currency` is not a word of at most {CURRENCY_CHARS_MAX} characters"
        ))),
    }
}

fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let amount = f64::deserialize(deserializer)?;
    match amount.is_finite() && amount >= 0.0 {
        true => Ok(amount),
        false => Err(D::Error::custom(format!("{amount} is no price: give 0 or more"))),
    }
}

fn models<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Price>, D::Error> {
    deserializer.deserialize_map(ModelPrices)
}

/// Reads the prices of models, each once.
struct ModelPrices;

impl<'de> Visitor<'de> for ModelPrices {
    type Value = BTreeMap<String, Price>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a price for each name of a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut models = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name.trim_end_matches('*').contains('*') || name.ends_with("**") {
                return Err(A::Error::custom(format!("`{name}` has a * before its end")));
            }
            let price: Price = map.next_value()?;
            if models.insert(name.clone(), price).is_some() {
                return Err(A::Error::custom(format!("`{name}` has two prices")));
            }
        }
        match models.is_empty() {
            true => Err(A::Error::custom("`models` names no model")),
            false => Ok(models),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(models: &str) -> Result<Prices, String> {
        let text = format!("{{\n\"currency\": \"USD\",\n\"models\": {models}}}");
        serde_json::from_str(&text).map_err(|error: serde_json::Error| error.to_string())
    }

    #[test]
    fn a_model_has_the_price_of_its_longest_name() {
        let prices = read(
            r#"{"gpt-5": {"prompt": 1, "completion": 10}, "*": {"prompt": 9, "completion": 9},
                "gpt-5*": {"prompt": 2, "completion": 20}, "gpt*": {"prompt": 3, "completion": 3}}"#,
        )
        .unwrap();
        let cost = |model: &str| prices.cost(model, 1_000_000, 500_000);
        assert_eq!(cost("gpt-5"), Some(6.0));
        assert_eq!(cost("gpt-5-mini"), Some(12.0));
        assert_eq!((cost("gpt-4"), cost("o4")), (Some(4.5), Some(13.5)));
        let own = read(r#"{"gpt-5": {"prompt": 1, "completion": 1}}"#).unwrap();
        assert_eq!(own.cost("gpt-5-mini", 1, 1), None);
    }

    #[test]
    fn a_bad_file_is_told_with_its_line() {
        let price = r#"{"prompt": 1, "completion": 2}"#;
        for (models, why) in [
            ("{}".to_owned(), "`models` names no model at line 3"),
            ("[]".to_owned(), "expected an object with a price for each name of a model"),
            (format!(r#"{{"a": {price},{}"a": {price}}}"#, '\n'), "`a` has two prices at line 4"),
            (format!(r#"{{"a*b": {price}}}"#), "`a*b` has a * before its end at line 3"),
            (r#"{"a": {"prompt": 1}}"#.to_owned(), "missing field `completion` at line 3"),
            (r#"{"a": {"prompt": -1, "completion": 1}}"#.to_owned(), "-1 is no price"),
            (
                r#"{"a": {"prompt": 1, "completion": 1, "cached": 0}}"#.to_owned(),
                "unknown field `cached`, expected `prompt` or `completion` at line 3",
            ),
        ] {
            let error = read(&models).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
