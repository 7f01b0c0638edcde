//! Settings of a store from two places: the environment, and the options, which count more.
#![cfg_attr(
    not(all(feature = "s3", feature = "gs", feature = "az", feature = "http")),
    allow(dead_code, reason = "each kind of store uses a part")
)]

use std::str::FromStr;

use deltachain::Result;

use crate::access::settings::{CONNECTION_STRINGS, ENVIRONMENT, resolve};

/// Settings by name, in the order in which they count: the last one wins.
pub(crate) type Settings = Vec<(String, String)>;

/// Settings of the environment that are not used beside some given ones.
pub(crate) struct Replaced {
    /// The given settings.
    pub(crate) by: &'static [&'static str],
    /// The settings of the environment.
    pub(crate) settings: &'static [&'static str],
    /// True if they are used all the same where a given value is also that of the environment.
    pub(crate) only_if_changed: bool,
}

/// Settings of S3 that given ones take out.
pub(crate) const S3_REPLACED: &[Replaced] = &[
    Replaced {
        // A session token belongs to its keys.
        by: &["access_key_id", "secret_access_key"],
        settings: &["session_token"],
        only_if_changed: true,
    },
    Replaced {
        by: &["endpoint"],
        settings: &["aws_endpoint_url_s3"],
        only_if_changed: false,
    },
    Replaced {
        by: &["region", "default_region"],
        settings: &["region", "default_region"],
        only_if_changed: false,
    },
];

/// The settings in the environment of this process.
pub(crate) fn settings_of_environment() -> Settings {
    let variables = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    sort_variables(variables)
}

/// The settings among environment variables, in an order that does not depend on that of the
/// variables. A connection string counts more than variables for single settings.
fn sort_variables(variables: impl Iterator<Item = (String, String)>) -> Settings {
    let mut settings: Settings = variables
        .filter(|(key, _)| ENVIRONMENT.iter().any(|start| key.starts_with(start)))
        // CI systems set a secret that is missing to an empty string.
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key.to_ascii_lowercase(), value))
        .collect();
    settings.sort_unstable();
    // The sort is stable.
    settings.sort_by_key(|(key, _)| CONNECTION_STRINGS.contains(&key.as_str()));
    settings
}

/// The settings of the options. An empty value stays: it takes out the one of the environment.
///
/// # Errors
/// USAGE if a setting names an environment variable that is missing.
pub(crate) fn given_settings(settings: &[(String, String)]) -> Result<Settings> {
    let given = resolve(settings)?.into_iter();
    Ok(given
        .map(|(key, value)| (key.to_ascii_lowercase(), value))
        .collect())
}

/// The given settings after those of the environment that still count. Names are compared as keys
/// of the `object_store` crate, which has several names for some.
pub(crate) fn merge<K: FromStr + PartialEq>(
    environment: &Settings,
    given: Settings,
    replaced: &[Replaced],
) -> Settings {
    let mut merged = environment.clone();
    for Replaced {
        by,
        settings,
        only_if_changed,
    } in replaced
    {
        let replaces = |(key, value): &(String, String)| {
            let is_named = by.iter().any(|name| is_same::<K>(name, key));
            let is_changed = environment
                .iter()
                .rfind(|(other, _)| is_same::<K>(other, key))
                .is_none_or(|(_, other)| other != value);
            is_named && !value.is_empty() && (is_changed || !only_if_changed)
        };
        if given.iter().any(replaces) {
            merged.retain(|(key, _)| !settings.iter().any(|name| is_same::<K>(name, key)));
        }
    }
    for (key, value) in given {
        merged.retain(|(other, _)| !is_same::<K>(other, &key));
        if !value.is_empty() {
            merged.push((key, value));
        }
    }
    merged
}

/// True if two names stand for one setting.
fn is_same<K: FromStr + PartialEq>(left: &str, right: &str) -> bool {
    if left == right {
        return true;
    }
    match (left.parse::<K>(), right.parse::<K>()) {
        (Ok(left), Ok(right)) => left == right,
        _ => false,
    }
}

/// The value of a setting, if it is set.
pub(crate) fn find_value<'a, K: FromStr + PartialEq>(
    settings: &'a [(String, String)],
    wanted: &K,
) -> Option<&'a str> {
    settings
        .iter()
        .rfind(|(key, _)| key.parse::<K>().is_ok_and(|key| key == *wanted))
        .map(|(_, value)| value.as_str())
}

#[cfg(all(test, feature = "s3", feature = "az"))]
mod tests {
    use object_store::aws::AmazonS3ConfigKey;

    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn merged(environment: &[(&str, &str)], given: &[(&str, &str)]) -> Settings {
        merge::<AmazonS3ConfigKey>(&settings(environment), settings(given), S3_REPLACED)
    }

    #[test]
    fn a_given_setting_replaces_that_of_the_environment_under_any_name() {
        let environment = [("aws_region", "a"), ("aws_token", "t"), ("aws_other", "o")];
        let given = [("region", "b"), ("session_token", "")];
        let expected = [("aws_other", "o"), ("region", "b")];
        assert_eq!(merged(&environment, &given), settings(&expected));
    }

    #[test]
    fn given_keys_are_not_joined_by_the_session_token_of_the_environment() {
        let environment = [
            ("aws_access_key_id", "a"),
            ("aws_secret_access_key", "b"),
            ("aws_session_token", "t"),
        ];
        let keys = [("access_key_id", "c"), ("secret_access_key", "d")];
        assert_eq!(merged(&environment, &keys), settings(&keys));
        // The same keys again, by `env:AWS_ACCESS_KEY_ID` for example.
        let same = [("access_key_id", "a"), ("secret_access_key", "b")];
        let expected = [&environment[2..], &same].concat();
        assert_eq!(merged(&environment, &same), settings(&expected));
    }

    #[test]
    fn a_given_endpoint_counts_more_than_all_of_the_environment() {
        let environment = [("aws_endpoint_url", "a"), ("aws_endpoint_url_s3", "b")];
        let given = [("endpoint", "c")];
        assert_eq!(merged(&environment, &given), settings(&given));
    }

    #[test]
    fn the_order_of_variables_does_not_matter() {
        let variables = [
            ("AZURE_STORAGE_CONNECTION_STRING", "s"),
            ("AZURE_STORAGE_SAS_TOKEN", "t"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "k"),
            ("AWS_REGION", ""),
            ("HOME", "h"),
        ];
        let expected = [
            ("azure_storage_account_key", "k"),
            ("azure_storage_sas_token", "t"),
            ("azure_storage_connection_string", "s"),
        ];
        let sorted = |variables: Settings| sort_variables(variables.into_iter());
        assert_eq!(sorted(settings(&variables)), settings(&expected));
        let backwards: Vec<_> = variables.into_iter().rev().collect();
        assert_eq!(sorted(settings(&backwards)), settings(&expected));
    }
}
