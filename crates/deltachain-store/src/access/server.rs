//! Stores on servers: buckets of all kinds, and web servers, which can only be read.
#![cfg_attr(
    not(all(feature = "s3", feature = "gs", feature = "az", feature = "http")),
    allow(dead_code, unused_imports, reason = "each kind of store uses a part")
)]

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::str::FromStr;
use std::sync::Arc;

use deltachain::{Error, Result, without_secrets};
#[cfg(feature = "s3")]
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
#[cfg(feature = "az")]
use object_store::azure::{AzureConfigKey, AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder};
#[cfg(feature = "http")]
use object_store::client::ClientConfigKey;
use object_store::client::ClientOptions;
#[cfg(feature = "gs")]
use object_store::gcp::{
    GcpCredential, GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey,
};
#[cfg(feature = "http")]
use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path;
use object_store::{Certificate, CredentialProvider, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

#[cfg(feature = "az")]
use crate::access::connection_string;
use crate::access::http::Connector;
use crate::access::merged::{
    Replaced, S3_REPLACED, Settings, find_value, given_settings, merge, settings_of_environment,
};
use crate::access::opened::OpenStore;
use crate::access::options::StoreOptions;
#[cfg(feature = "s3")]
use crate::access::provider::Provider;
use crate::access::refusal::told;
use crate::access::services::{self, Limited, Service, Texts};
use crate::access::settings::{self, KnownSettings};
use crate::access::sources;
#[cfg(feature = "s3")]
use crate::access::sources::METADATA_ENDPOINT;

/// Settings with which S3 asks for credentials elsewhere than in a profile.
const S3_CREDENTIALS: [&str; 6] = [
    "access_key_id",
    "web_identity_token_file",
    "container_credentials_relative_uri",
    "container_credentials_full_uri",
    "metadata_endpoint",
    "skip_signature",
];

/// Settings that give Google's credentials. The crate has an order of its own for these, and
/// refuses some pairs.
#[cfg(feature = "gs")]
const GOOGLE_CREDENTIALS: &[&str] = &[
    "service_account",
    "service_account_key",
    "application_credentials",
    "bearer_token",
];

/// Settings that give Azure's credentials. The crate has an order of its own for these.
#[cfg(feature = "az")]
const AZURE_CREDENTIALS: &[&str] = &["account_key", "sas_token", "bearer_token"];

/// Opens the store that a URL names.
///
/// # Errors
/// USAGE if the kind of store is unknown, or settings are missing or wrong.
pub(crate) fn open(url: &Url, options: &StoreOptions) -> Result<OpenStore> {
    let (scheme, prefix) =
        ObjectStoreScheme::parse(url).map_err(|error| Error::usage(error.to_string()))?;
    let opened = match scheme {
        #[cfg(feature = "s3")]
        ObjectStoreScheme::AmazonS3 => open_s3(url, options)?,
        #[cfg(feature = "gs")]
        ObjectStoreScheme::GoogleCloudStorage => open_google(url, options)?,
        #[cfg(feature = "az")]
        ObjectStoreScheme::MicrosoftAzure => open_azure(url, options)?,
        #[cfg(feature = "http")]
        ObjectStoreScheme::Http => open_web(url, options)?,
        _ => {
            return Err(Error::usage(format!(
                "unknown kind of store: {}://",
                url.scheme()
            )));
        }
    };
    Ok(OpenStore { prefix, ..opened })
}

#[cfg(feature = "s3")]
fn open_s3(url: &Url, options: &StoreOptions) -> Result<OpenStore> {
    let mut environment = settings_of_environment();
    add_metadata_endpoint(&mut environment);
    let given = given_settings(&options.settings)?;
    let opening = Opening::new::<AmazonS3Builder>(url, options, &environment, given)?;
    let mut builder = AmazonS3Builder::new();
    let mut renewal = None;
    if let Some(source) = options.credentials.clone() {
        let provider = Provider::new(source);
        renewal = Some(provider.renewal());
        builder = builder.with_credentials(Arc::new(provider));
    } else {
        check_profile(&opening.settings)?;
    }
    let builder = opening.configure(builder, url.as_str())?;
    let service = if renewal.is_some() {
        None
    } else {
        sources::service_of_s3(&opening.settings)?
    };
    Ok(OpenStore {
        renewal,
        ..opening.build_bucket(builder, service)?
    })
}

#[cfg(feature = "gs")]
fn open_google(url: &Url, options: &StoreOptions) -> Result<OpenStore> {
    refuse_credentials(options)?;
    let environment = settings_of_environment();
    let given = given_settings(&options.settings)?;
    let opening = Opening::new::<GoogleCloudStorageBuilder>(url, options, &environment, given)?;
    let builder = opening.configure(GoogleCloudStorageBuilder::new(), url.as_str())?;
    let service = sources::service_of_google(&opening.settings);
    opening.build_bucket(builder, service)
}

#[cfg(feature = "az")]
fn open_azure(url: &Url, options: &StoreOptions) -> Result<OpenStore> {
    refuse_credentials(options)?;
    let given = given_settings(&options.settings)?;
    let (environment, given) = connection_string::expand_both(settings_of_environment(), given)?;
    let opening = Opening::new::<MicrosoftAzureBuilder>(url, options, &environment, given)?;
    let builder = opening.configure(MicrosoftAzureBuilder::new(), url.as_str())?;
    let service = sources::service_of_azure(&opening.settings, url)?;
    opening.build_bucket(builder, service)
}

#[cfg(feature = "http")]
fn open_web(url: &Url, options: &StoreOptions) -> Result<OpenStore> {
    refuse_credentials(options)?;
    let environment = settings_of_environment();
    let given = given_settings(&options.settings)?;
    let opening = Opening::new::<HttpBuilder>(url, options, &environment, given)?;
    let server = &url[..url::Position::BeforePath];
    let builder = opening.configure(HttpBuilder::new(), server)?;
    Ok(OpenStore {
        can_list: false,
        ..opening.build(builder)?
    })
}

/// # Errors
/// USAGE if the options have credentials of the caller's own.
fn refuse_credentials(options: &StoreOptions) -> Result<()> {
    if options.credentials.is_none() {
        return Ok(());
    }
    Err(Error::usage(
        "only S3 stores support a function for credentials; give settings",
    ))
}

/// The inputs of the builder of a store.
struct Opening<'a> {
    url: &'a Url,
    options: &'a StoreOptions,
    settings: Settings,
    connector: Connector,
}

impl<'a> Opening<'a> {
    fn new<B: Builder>(
        url: &'a Url,
        options: &'a StoreOptions,
        environment: &Settings,
        given: Settings,
    ) -> Result<Self> {
        let settings = merge::<B::Key>(environment, given, B::REPLACED);
        let connector = Connector::new(options, authorities(&settings)?);
        Ok(Self {
            url,
            options,
            settings,
            connector,
        })
    }

    /// Gives a builder the URL and the settings.
    ///
    /// # Errors
    /// USAGE if a setting is unknown or has an impossible value.
    fn configure<B: Builder>(&self, builder: B, url: &str) -> Result<B> {
        B::KNOWN.check(&self.options.settings, |key| {
            B::OWN_SETTINGS.contains(&key) || key.parse::<B::Key>().is_ok()
        })?;
        // Time limits are for progress, and retries are made here, where all kinds of stores have
        // them alike.
        let retry = RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        };
        let mut builder = builder.at(url, self.connector.client_options(), retry);
        if is_plain::<B>(self.url, &self.settings)
            && let Ok(key) = "allow_http".parse()
        {
            builder = builder.set(key, "true");
        }
        for (key, value) in &self.settings {
            // A variable of the environment may be for another kind of store, or for another
            // program.
            if let Ok(known) = key.parse() {
                settings::check_value(key, value)?;
                builder = builder.set(known, value);
            }
        }
        Ok(builder)
    }

    /// Builds the store of a bucket. A store is built twice if a service gives its credentials: a
    /// first one is made for its provider, whose requests have limits of their own.
    ///
    /// # Errors
    /// USAGE if the settings are incomplete, or the file of the service is unusable.
    #[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
    fn build_bucket<B: BucketBuilder>(
        self,
        mut builder: B,
        service: Option<Service>,
    ) -> Result<OpenStore> {
        if let Some(service) = service {
            service.check()?;
            let asking = self
                .connector
                .for_credentials(service.purpose(), service.token_file().cloned());
            let last_failure = Arc::clone(&asking.last_failure);
            let first = builder.clone().build_with(asking);
            let first = first.map_err(|error| unusable(&error, &service))?;
            let limited = Limited {
                inner: B::credentials(&first),
                service,
                limit: services::time_limit(&self.settings)?,
                store: without_secrets(self.url.as_str()),
                last_failure,
            };
            builder = builder.with_provider(Arc::new(limited));
        }
        self.build(builder)
    }

    /// Builds the store, without its prefix.
    ///
    /// # Errors
    /// USAGE if the settings are incomplete.
    fn build<B: Builder>(self, builder: B) -> Result<OpenStore> {
        let date = Arc::clone(&self.connector.date);
        let store = builder
            .build_with(self.connector)
            .map_err(|error| Error::usage(error.to_string()))?;
        Ok(OpenStore {
            is_watched: true,
            words: B::KNOWN.words,
            date,
            ..OpenStore::new(Arc::new(store), Path::default())
        })
    }
}

/// A builder of the `object_store` crate, whose builders have no trait in common.
trait Builder: Sized {
    type Key: FromStr + PartialEq + Copy;
    type Store: ObjectStore;
    const KNOWN: KnownSettings;
    /// Names of settings that this library adds to those of the crate.
    const OWN_SETTINGS: &'static [&'static str];
    /// Settings of the environment that other settings, if the user gives them, take out.
    const REPLACED: &'static [Replaced];
    /// Settings with the address of the store. The crate prefers the first one.
    const ADDRESSES: &'static [&'static str];

    /// The builder of the store at a URL.
    fn at(self, url: &str, client: ClientOptions, retry: RetryConfig) -> Self;
    fn set(self, key: Self::Key, value: &str) -> Self;
    fn build_with(self, connector: Connector) -> object_store::Result<Self::Store>;
}

/// A builder whose stores may get credentials from a service.
#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
trait BucketBuilder: Builder + Clone {
    type Credential: Texts + Debug + Send + Sync + 'static;

    fn credentials(
        store: &Self::Store,
    ) -> Arc<dyn CredentialProvider<Credential = Self::Credential>>;
    fn with_provider(self, provider: Arc<Limited<Self::Credential>>) -> Self;
}

/// The methods of [`Builder`], which call those that all builders of the crate have. No function
/// can do it, because the crate has no trait with them.
macro_rules! builder_methods {
    () => {
        fn at(self, url: &str, client: ClientOptions, retry: RetryConfig) -> Self {
            self.with_url(url)
                .with_client_options(client)
                .with_retry(retry)
        }

        fn set(self, key: Self::Key, value: &str) -> Self {
            self.with_config(key, value)
        }

        fn build_with(self, connector: Connector) -> object_store::Result<Self::Store> {
            self.with_http_connector(connector).build()
        }
    };
}

/// The methods of [`BucketBuilder`], for the same reason.
#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
macro_rules! bucket_builder_methods {
    () => {
        fn credentials(
            store: &Self::Store,
        ) -> Arc<dyn CredentialProvider<Credential = Self::Credential>> {
            Arc::clone(store.credentials())
        }

        fn with_provider(self, provider: Arc<Limited<Self::Credential>>) -> Self {
            self.with_credentials(provider)
        }
    };
}

#[cfg(feature = "s3")]
impl Builder for AmazonS3Builder {
    type Key = AmazonS3ConfigKey;
    type Store = AmazonS3;
    const KNOWN: KnownSettings = settings::S3;
    const OWN_SETTINGS: &'static [&'static str] = &[services::TIMEOUT];
    const REPLACED: &'static [Replaced] = S3_REPLACED;
    const ADDRESSES: &'static [&'static str] = &["aws_endpoint_url_s3", "endpoint"];

    builder_methods!();
}

#[cfg(feature = "s3")]
impl BucketBuilder for AmazonS3Builder {
    type Credential = AwsCredential;

    bucket_builder_methods!();
}

#[cfg(feature = "gs")]
impl Builder for GoogleCloudStorageBuilder {
    type Key = GoogleConfigKey;
    type Store = GoogleCloudStorage;
    const KNOWN: KnownSettings = settings::GOOGLE;
    const OWN_SETTINGS: &'static [&'static str] = &[services::TIMEOUT];
    const REPLACED: &'static [Replaced] = &[Replaced {
        by: GOOGLE_CREDENTIALS,
        settings: GOOGLE_CREDENTIALS,
        only_if_changed: false,
    }];
    const ADDRESSES: &'static [&'static str] = &["base_url"];

    builder_methods!();
}

#[cfg(feature = "gs")]
impl BucketBuilder for GoogleCloudStorageBuilder {
    type Credential = GcpCredential;

    bucket_builder_methods!();
}

#[cfg(feature = "az")]
impl Builder for MicrosoftAzureBuilder {
    type Key = AzureConfigKey;
    type Store = MicrosoftAzure;
    const KNOWN: KnownSettings = settings::AZURE;
    const OWN_SETTINGS: &'static [&'static str] = &[services::TIMEOUT, "connection_string"];
    const REPLACED: &'static [Replaced] = &[Replaced {
        by: AZURE_CREDENTIALS,
        settings: AZURE_CREDENTIALS,
        only_if_changed: false,
    }];
    const ADDRESSES: &'static [&'static str] = &["endpoint"];

    builder_methods!();
}

#[cfg(feature = "az")]
impl BucketBuilder for MicrosoftAzureBuilder {
    type Credential = AzureCredential;

    bucket_builder_methods!();
}

#[cfg(feature = "http")]
impl Builder for HttpBuilder {
    type Key = ClientConfigKey;
    type Store = HttpStore;
    const KNOWN: KnownSettings = settings::WEB;
    const OWN_SETTINGS: &'static [&'static str] = &[];
    const REPLACED: &'static [Replaced] = &[];
    const ADDRESSES: &'static [&'static str] = &[];

    builder_methods!();
}

/// True if the user names a server without encryption: in the URL, or in the setting with the
/// address of this store. Addresses of other services do not count.
fn is_plain<B: Builder>(url: &Url, settings: &[(String, String)]) -> bool {
    let address = B::ADDRESSES
        .iter()
        .filter_map(|name| name.parse::<B::Key>().ok())
        .find_map(|key| find_value(settings, &key));
    url.scheme() == "http" || address.is_some_and(|address| address.starts_with("http://"))
}

/// The error of a store that cannot be built, with the file that its credentials come from.
fn unusable(error: &object_store::Error, service: &Service) -> Error {
    let text = without_secrets(&told(error));
    match &service.file {
        Some(file) => Error::usage(format!("{}={}: {text}", file.name, file.path)),
        None => Error::usage(text),
    }
}

/// Adds the metadata service that Amazon's own programs would ask, of which the crate does not
/// know. The crate's own name for it counts if both are set.
#[cfg(feature = "s3")]
fn add_metadata_endpoint(environment: &mut Settings) {
    let endpoint = environment
        .iter()
        .rfind(|(key, _)| key == METADATA_ENDPOINT);
    if let Some((_, endpoint)) = endpoint {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        environment.insert(0, ("metadata_endpoint".to_owned(), endpoint));
    }
}

/// Reads the certificates of the user's own authorities, which are trusted beside those of the
/// machine.
///
/// # Errors
/// USAGE if a variable names a file that cannot be read, or `AWS_CA_BUNDLE` one without
/// certificates.
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
    // The TLS library reads this file, and ignores a missing one.
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

/// Checks that credentials do not come from a profile. Profiles are not read, and without this
/// check the metadata service would be asked.
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
                "AWS_PROFILE is {profile}, but profiles (single sign-on among them) are not read: \
                 set AWS_ACCESS_KEY_ID and so on, as `aws configure export-credentials --profile \
                 {profile} --format env` prints them, or unset AWS_PROFILE"
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

    #[cfg(feature = "s3")]
    #[test]
    fn only_the_address_of_the_store_switches_encryption_off() {
        let url = Url::parse("s3://bucket/chain").unwrap();
        let is_plain = |settings: &[(&str, &str)]| {
            let settings: Vec<_> = settings
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            is_plain::<AmazonS3Builder>(&url, &settings)
        };
        let http = "http://127.0.0.1:9000";
        for key in ["aws_endpoint_url", "aws_endpoint_url_s3", "endpoint"] {
            assert!(is_plain(&[(key, http)]), "{key}");
        }
        for key in [
            "aws_endpoint_url_dynamodb",
            "aws_endpoint_url_sts",
            "aws_ec2_metadata_service_endpoint",
            "metadata_endpoint",
            "azure_storage_endpoint",
            "google_base_url",
        ] {
            assert!(!is_plain(&[(key, http)]), "{key}");
        }
        // The crate prefers the address for S3 alone.
        let both = [
            ("aws_endpoint_url_s3", "https://h"),
            ("aws_endpoint_url", http),
        ];
        assert!(!is_plain(&both));
    }
}
