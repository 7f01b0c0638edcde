//! Stores on servers: buckets of all kinds, and web servers, which can only be read.

use std::ffi::OsStr;
use std::fs;
use std::sync::Arc;

use deltachain::{Error, Result};
#[cfg(feature = "s3")]
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
#[cfg(feature = "az")]
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
#[cfg(feature = "http")]
use object_store::client::ClientConfigKey;
#[cfg(feature = "gs")]
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
#[cfg(feature = "http")]
use object_store::http::HttpBuilder;
use object_store::{Certificate, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

use crate::access::http::Connector;
use crate::access::opened::{OpenStore, Renew};
use crate::access::options::StoreOptions;
#[cfg(feature = "s3")]
use crate::access::provider::Provider;
use crate::access::settings::{self, ENVIRONMENT};

/// Settings with which S3 asks for credentials elsewhere than in a profile.
const S3_CREDENTIALS: [&str; 6] = [
    "access_key_id",
    "web_identity_token_file",
    "container_credentials_relative_uri",
    "container_credentials_full_uri",
    "metadata_endpoint",
    "skip_signature",
];

pub(crate) fn open(url: &Url, options: &StoreOptions) -> Result<OpenStore> {
    let usage = |error: object_store::Error| Error::usage(error.to_string());
    let (scheme, prefix) =
        ObjectStoreScheme::parse(url).map_err(|error| Error::usage(error.to_string()))?;
    let settings = all_settings(url, options)?;
    if scheme == ObjectStoreScheme::AmazonS3 && options.credentials.is_none() {
        check_profile(&settings)?;
    }
    let connector = Connector::new(options, authorities(&settings)?);
    let date = Arc::clone(&connector.date);
    let mut renew: Option<Renew> = None;
    let credentials;
    // All four are built alike, by builders that have no trait in common.
    macro_rules! built {
        ($builder:expr, $url:expr, $key:ty, $known:expr) => {{
            credentials = $known.credentials;
            let mut builder = $builder
                .with_url($url)
                // Time limits are for progress, and retries are made here, where all kinds of
                // stores have them alike.
                .with_client_options(connector.client_options())
                .with_retry(RetryConfig {
                    max_retries: 0,
                    ..RetryConfig::default()
                })
                .with_http_connector(connector);
            $known.check(&options.settings, |key| key.parse::<$key>().is_ok())?;
            for (key, value) in &settings {
                // A variable of the environment may be for another kind of store, or for another
                // program.
                if let Ok(known) = key.parse() {
                    settings::check_value(key, value)?;
                    builder = builder.with_config(known, value);
                }
            }
            Arc::new(builder.build().map_err(usage)?)
        }};
    }
    let objects: Arc<dyn ObjectStore> = match scheme {
        #[cfg(feature = "s3")]
        ObjectStoreScheme::AmazonS3 => {
            let mut builder = AmazonS3Builder::new();
            if let Some(source) = options.credentials.clone() {
                let own = Arc::new(Provider::new(source));
                builder = builder.with_credentials(Arc::clone(&own) as _);
                renew = Some(Arc::new(move || own.renew()));
            }
            built!(builder, url.as_str(), AmazonS3ConfigKey, settings::S3)
        }
        _ if options.credentials.is_some() => {
            return Err(Error::usage(
                "only S3 takes credentials of the caller's own; give settings",
            ));
        }
        #[cfg(feature = "gs")]
        ObjectStoreScheme::GoogleCloudStorage => {
            built!(
                GoogleCloudStorageBuilder::new(),
                url.as_str(),
                GoogleConfigKey,
                settings::GOOGLE
            )
        }
        #[cfg(feature = "az")]
        ObjectStoreScheme::MicrosoftAzure => {
            built!(
                MicrosoftAzureBuilder::new(),
                url.as_str(),
                AzureConfigKey,
                settings::AZURE
            )
        }
        #[cfg(feature = "http")]
        ObjectStoreScheme::Http => {
            built!(
                HttpBuilder::new(),
                &url[..url::Position::BeforePath],
                ClientConfigKey,
                settings::WEB
            )
        }
        _ => {
            return Err(Error::usage(format!(
                "unknown kind of store: {}://",
                url.scheme()
            )));
        }
    };
    let can_list = scheme != ObjectStoreScheme::Http;
    Ok(OpenStore {
        can_list,
        is_watched: true,
        credentials,
        date,
        renew,
        ..OpenStore::new(objects, prefix)
    })
}

/// Settings from the environment, and after them the settings of the options; the later ones win.
///
/// # Errors
/// USAGE if one of these names an environment variable that is missing.
fn all_settings(url: &Url, options: &StoreOptions) -> Result<Vec<(String, String)>> {
    let environment = std::env::vars_os().filter_map(|(key, value)| {
        let key = key
            .into_string()
            .ok()
            .filter(|key| ENVIRONMENT.iter().any(|start| key.starts_with(start)))?;
        Some((key.to_ascii_lowercase(), value.into_string().ok()?))
    });
    let mut settings: Vec<(String, String)> = environment.collect();
    settings.extend(
        settings::resolve(&options.settings)?
            .into_iter()
            .map(|(key, value)| (key.to_ascii_lowercase(), value)),
    );
    // A user who names a server without encryption wants it so.
    let is_plain =
        |(key, value): &(String, String)| key.contains("endpoint") && value.starts_with("http://");
    if url.scheme() == "http" || settings.iter().any(is_plain) {
        settings.insert(0, ("allow_http".to_owned(), "true".to_owned()));
    }
    Ok(settings)
}

/// The certificates of the user's own authorities, which count beside those of the machine.
///
/// # Errors
/// USAGE if a variable names a file that has none.
fn authorities(settings: &[(String, String)]) -> Result<Vec<u8>> {
    let named = settings
        .iter()
        .rfind(|(key, value)| key == "aws_ca_bundle" && !value.is_empty());
    let read = |name: &str, path: &OsStr| {
        let failed = |error| {
            Error::usage(format!("{name} names a file that cannot be read: {error}")).in_file(path)
        };
        fs::read(path).map_err(failed)
    };
    // It is read by a library that is silent about a file that is missing.
    if let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        read("SSL_CERT_FILE", &path)?;
    }
    named.map_or(Ok(Vec::new()), |(_, path)| {
        let pem = read("AWS_CA_BUNDLE", path.as_ref())?;
        match Certificate::from_pem_bundle(&pem) {
            Ok(certificates) if !certificates.is_empty() => Ok(pem),
            _ => Err(
                Error::usage("AWS_CA_BUNDLE names a file without certificates in PEM")
                    .in_file(path),
            ),
        }
    })
}

/// Profiles are not read: better to say so than to ask for credentials where there are none.
///
/// # Errors
/// USAGE if there is nothing but a profile.
fn check_profile(settings: &[(String, String)]) -> Result<()> {
    let find = |wanted: &str| {
        let found = settings
            .iter()
            .rfind(|(key, value)| key.trim_start_matches("aws_") == wanted && !value.is_empty());
        found.map(|(_, value)| value)
    };
    match find("profile") {
        Some(profile) if S3_CREDENTIALS.iter().all(|key| find(key).is_none()) => {
            Err(Error::usage(format!(
                "AWS_PROFILE is {profile}, but profiles (single sign-on among them) are not read: set AWS_ACCESS_KEY_ID \
             and so on, as `aws configure export-credentials --profile {profile} --format env` prints them, or unset \
             AWS_PROFILE"
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(settings: &[(&str, &str)]) -> Result<()> {
        let settings: Vec<_> = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        check_profile(&settings)
    }

    #[test]
    fn a_profile_alone_is_refused() {
        let error = checked(&[("aws_profile", "sso-dev"), ("aws_region", "x")]).unwrap_err();
        assert!(
            error
                .message()
                .contains("export-credentials --profile sso-dev"),
            "{error:?}"
        );
        checked(&[]).unwrap();
        checked(&[("aws_profile", "")]).unwrap();
        for key in [
            "aws_access_key_id",
            "access_key_id",
            "aws_web_identity_token_file",
            "skip_signature",
        ] {
            checked(&[("aws_profile", "dev"), (key, "something")]).unwrap();
        }
    }
}
