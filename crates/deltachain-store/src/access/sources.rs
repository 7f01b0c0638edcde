//! Finds the service that a store asks for credentials, by its settings. The order is that of
//! `AmazonS3Builder::build` and the other builders of `object_store` 0.14.2, which choose the
//! service: compare it when that crate is updated.
#![cfg_attr(
    not(all(feature = "s3", feature = "gs", feature = "az", feature = "http")),
    allow(dead_code, unused_imports, reason = "each kind of store uses a part")
)]

use std::str::FromStr;

use deltachain::{Error, Result};
#[cfg(feature = "s3")]
use object_store::aws::AmazonS3ConfigKey;
#[cfg(feature = "az")]
use object_store::azure::AzureConfigKey;
#[cfg(feature = "gs")]
use object_store::gcp::GoogleConfigKey;

use crate::access::named_file::NamedFile;
use crate::access::services::Service;
use crate::access::settings::name_of;

type Settings = [(String, String)];

/// A setting that is set.
struct Found<'a> {
    /// The variable or the setting, for people.
    name: String,
    value: &'a str,
}

impl Found<'_> {
    fn is_true(&self) -> bool {
        let value = self.value.to_ascii_lowercase();
        matches!(value.as_str(), "1" | "true" | "on" | "yes" | "y")
    }

    fn as_file(&self, is_token: bool) -> NamedFile {
        NamedFile {
            name: self.name.clone(),
            path: self.value.to_owned(),
            is_token,
        }
    }
}

fn find<K: FromStr + PartialEq + Copy>(settings: &Settings, wanted: K) -> Option<Found<'_>> {
    let found = settings
        .iter()
        .rfind(|(key, _)| key.parse::<K>().is_ok_and(|key| key == wanted))?;
    Some(Found {
        name: name_of(&found.0),
        value: &found.1,
    })
}

fn is_true<K: FromStr + PartialEq + Copy>(settings: &Settings, wanted: K) -> bool {
    find(settings, wanted).is_some_and(|found| found.is_true())
}

fn no_credentials(why: &str, advice: &str) -> Error {
    Error::usage(format!("no credentials found: {why}: {advice}"))
}

/// The service that S3 asks; `None` if keys are given, or requests are not signed.
///
/// # Errors
/// USAGE if there is nothing to ask, or half of what a service needs is missing.
#[cfg(feature = "s3")]
pub(crate) fn service_of_s3(settings: &Settings) -> Result<Option<Service>> {
    use AmazonS3ConfigKey as Key;
    let find = |key: Key| find(settings, key);
    if is_true(settings, Key::SkipSignature) {
        return Ok(None);
    }
    match (find(Key::AccessKeyId), find(Key::SecretAccessKey)) {
        (Some(_), Some(_)) => return Ok(None),
        (Some(key), None) => return Err(half(&key, "AWS_SECRET_ACCESS_KEY")),
        (None, Some(secret)) => return Err(half(&secret, "AWS_ACCESS_KEY_ID")),
        (None, None) => {}
    }
    let token = find(Key::WebIdentityTokenFile);
    if let (Some(token), Some(_)) = (&token, find(Key::RoleArn)) {
        let region = find(Key::Region).or_else(|| find(Key::DefaultRegion));
        let region = region.map_or("us-east-1", |region| region.value);
        let endpoint = match find(Key::StsEndpoint) {
            Some(endpoint) if !endpoint.value.starts_with("https://") => {
                let name = endpoint.name;
                let text = format!(
                    "{name} is not an address with https://: tokens are sent only over TLS"
                );
                return Err(Error::usage(text));
            }
            Some(endpoint) => endpoint.value.to_owned(),
            None => format!("https://sts.{region}.amazonaws.com"),
        };
        let what = format!("{endpoint}, with the token of {}", token.name);
        let service = Service::configured(what).with_file(token.as_file(true));
        return Ok(Some(service));
    }
    if let Some(uri) = find(Key::ContainerCredentialsRelativeUri) {
        let what = format!("the container's service, by {}", uri.name);
        return Ok(Some(Service::configured(what)));
    }
    let full = find(Key::ContainerCredentialsFullUri);
    if let (Some(uri), Some(token)) = (&full, find(Key::ContainerAuthorizationTokenFile)) {
        let what = format!("{}, by {}", uri.value, uri.name);
        let service = Service::configured(what).with_file(token.as_file(true));
        return Ok(Some(service));
    }
    if let Some(token) = token {
        return Err(half(&token, "AWS_ROLE_ARN"));
    }
    if let Some(uri) = full {
        return Err(half(&uri, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
    }
    let is_off = settings.iter().rfind(|(key, _)| key == METADATA_DISABLED);
    if is_off.is_some_and(|(_, value)| value.eq_ignore_ascii_case("true")) {
        return Err(no_credentials(
            "AWS_ACCESS_KEY_ID is not set, and AWS_EC2_METADATA_DISABLED is true",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or for a public bucket the setting \
             skip_signature=true",
        ));
    }
    let endpoint = find(Key::MetadataEndpoint);
    let address = endpoint
        .as_ref()
        .map_or("http://169.254.169.254", |endpoint| endpoint.value);
    let what = format!(
        "AWS_ACCESS_KEY_ID is not set, and the metadata service {address} gives no credentials"
    );
    Ok(Some(Service {
        is_configured: false,
        works_without_token: is_true(settings, Key::ImdsV1Fallback),
        ..Service::configured(what)
    }))
}

/// A variable of Amazon's programs that the crate does not know: no metadata service is asked.
#[cfg(feature = "s3")]
const METADATA_DISABLED: &str = "aws_ec2_metadata_disabled";
/// A variable of Amazon's programs that the crate does not know: address of the metadata service.
#[cfg(feature = "s3")]
pub(crate) const METADATA_ENDPOINT: &str = "aws_ec2_metadata_service_endpoint";

fn half(set: &Found<'_>, missing: &str) -> Error {
    Error::usage(format!("{} is set, but {missing} is not", set.name))
}

/// The service that Google's store asks; `None` if a token is given, or requests are not signed.
#[cfg(feature = "gs")]
pub(crate) fn service_of_google(settings: &Settings) -> Option<Service> {
    use GoogleConfigKey as Key;
    let find = |key: Key| find(settings, key);
    if is_true(settings, Key::SkipSignature) || find(Key::BearerToken).is_some() {
        return None;
    }
    let file = find(Key::ServiceAccount).or_else(|| find(Key::ApplicationCredentials));
    if let Some(file) = file {
        let what = format!("the service that the file of {} names", file.name);
        return Some(Service::configured(what).with_file(file.as_file(false)));
    }
    if let Some(key) = find(Key::ServiceAccountKey) {
        let what = format!("the service that {} names", key.name);
        return Some(Service::configured(what));
    }
    if let Some(path) = file_of_gcloud() {
        let what = format!("the service that {path} names");
        return Some(Service::configured(what));
    }
    let named = ["GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"];
    let named = named
        .into_iter()
        .find(|name| std::env::var_os(name).is_some());
    if let Some(name) = named {
        let what = format!("the metadata service that {name} names");
        return Some(Service::configured(what));
    }
    let what = "GOOGLE_APPLICATION_CREDENTIALS is not set, and the metadata service \
                metadata.google.internal gives no credentials";
    Some(Service {
        is_configured: false,
        ..Service::configured(what)
    })
}

/// The file that `gcloud auth application-default login` writes, if it exists.
#[cfg(feature = "gs")]
fn file_of_gcloud() -> Option<String> {
    let (home, name) = if cfg!(windows) {
        ("APPDATA", "gcloud/application_default_credentials.json")
    } else {
        (
            "HOME",
            ".config/gcloud/application_default_credentials.json",
        )
    };
    let path = std::path::PathBuf::from(std::env::var_os(home)?).join(name);
    path.exists().then(|| path.to_string_lossy().into_owned())
}

/// The service that Azure's store asks; `None` if keys or tokens are given, or requests are not
/// signed.
///
/// # Errors
/// USAGE if neither the settings nor the URL name the account.
#[cfg(feature = "az")]
pub(crate) fn service_of_azure(settings: &Settings, url: &url::Url) -> Result<Option<Service>> {
    use AzureConfigKey as Key;
    let find = |key: Key| find(settings, key);
    if is_true(settings, Key::UseEmulator) {
        return Ok(None);
    }
    let is_named = url.scheme() == "https" || !url.username().is_empty();
    if !is_named && find(Key::AccountName).is_none() {
        return Err(Error::usage(
            "the storage account is missing: set AZURE_STORAGE_ACCOUNT_NAME or \
             AZURE_STORAGE_CONNECTION_STRING",
        ));
    }
    let given = [Key::Token, Key::AccessKey, Key::SasKey];
    let is_given = given.into_iter().any(|key| find(key).is_some());
    if is_true(settings, Key::SkipSignature) || is_given {
        return Ok(None);
    }
    let has_client = find(Key::ClientId).is_some() && find(Key::AuthorityId).is_some();
    if let (true, Some(token)) = (has_client, find(Key::FederatedTokenFile)) {
        let what = format!("Entra ID, with the token of {}", token.name);
        let service = Service::configured(what).with_file(token.as_file(true));
        return Ok(Some(service));
    }
    if let (true, Some(secret)) = (has_client, find(Key::ClientSecret)) {
        let what = format!("Entra ID, with {}", secret.name);
        return Ok(Some(Service::configured(what)));
    }
    if is_true(settings, Key::UseAzureCli) {
        return Ok(Some(Service::configured("the command `az`")));
    }
    let named = [
        Key::MsiEndpoint,
        Key::ClientId,
        Key::ObjectId,
        Key::MsiResourceId,
        Key::CredentialType,
        Key::FabricTokenServiceUrl,
    ];
    if let Some(named) = named.into_iter().find_map(find) {
        let what = format!("the service that {} names", named.name);
        return Ok(Some(Service::configured(what)));
    }
    let what = "AZURE_STORAGE_ACCOUNT_KEY is not set, and the metadata service \
                http://169.254.169.254 gives no credentials";
    Ok(Some(Service {
        is_configured: false,
        ..Service::configured(what)
    }))
}
