//! Azure's connection strings, as the portal and `az storage account show-connection-string` print
//! them: account, key or shared access signature, and addresses, separated by semicolons.

use deltachain::{Error, Result};
use url::{Host, Url};

use crate::access::merged::Settings;
use crate::access::settings::{CONNECTION_STRINGS, check_text, name_of};

/// The domain of the public cloud.
const SUFFIX: &str = "core.windows.net";

/// Account and key of the emulator, which are the same everywhere and are published:
/// <https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string>.
const EMULATOR: [(&str, &str); 3] = [
    ("account_name", "devstoreaccount1"),
    (
        "account_key",
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    ),
    ("endpoint", "http://127.0.0.1:10000/devstoreaccount1"),
];

/// The settings of the environment and the given ones, both with the settings of connection strings
/// in the place of the strings. A given string takes out that of the environment, also if it is
/// empty.
///
/// # Errors
/// Same errors as [`expand`].
pub(crate) fn expand_both(
    mut environment: Settings,
    mut given: Settings,
) -> Result<(Settings, Settings)> {
    let is_string = |(key, _): &(String, String)| CONNECTION_STRINGS.contains(&key.as_str());
    if given.iter().any(is_string) {
        environment.retain(|setting| !is_string(setting));
    }
    given.retain(|setting| !is_string(setting) || !setting.1.is_empty());
    Ok((expand(&environment, &given)?, expand(&given, &[])?))
}

/// Puts the settings of a connection string in its place in a list in which the last setting wins.
/// `beside` are settings that come after the list.
///
/// # Errors
/// USAGE, with the name of the setting and never its value, if it cannot be understood or is for
/// another account than settings beside it.
fn expand(settings: &[(String, String)], beside: &[(String, String)]) -> Result<Settings> {
    let mut expanded = Settings::new();
    for (key, value) in settings {
        if CONNECTION_STRINGS.contains(&key.as_str()) {
            let refused = |what: &str| Error::usage(format!("{}: {what}", name_of(key)));
            check_text(&name_of(key), value)?;
            let parsed = parse(value).map_err(|what| refused(&what))?;
            for (own, account) in settings.iter().chain(beside) {
                let is_account = own.ends_with("account_name");
                if is_account && parsed.first().is_some_and(|(_, name)| name != account) {
                    let text = format!("its account is not the one in {}", name_of(own));
                    return Err(refused(&text));
                }
            }
            expanded.extend(parsed);
        } else {
            expanded.push((key.clone(), value.clone()));
        }
    }
    Ok(expanded)
}

/// The settings of a connection string; the account's name comes first.
///
/// # Errors
/// The reason why it cannot be understood, without any of its values.
fn parse(text: &str) -> Result<Settings, String> {
    let mut parts: Vec<(String, &str)> = Vec::new();
    for (number, part) in text.split(';').enumerate() {
        if part.trim().is_empty() {
            continue;
        }
        let Some((key, value)) = part.split_once('=') else {
            return Err(format!(
                "part {} is not KEY=VALUE; parts are separated by semicolons",
                number + 1
            ));
        };
        parts.push((key.trim().to_ascii_lowercase(), value.trim()));
    }
    let find = |wanted: &str| {
        let found = parts.iter().rfind(|(key, _)| key == wanted);
        found
            .map(|(_, value)| *value)
            .filter(|value| !value.is_empty())
    };
    if find("usedevelopmentstorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return emulator(find("developmentstorageproxyuri"));
    }
    let endpoint = find("blobendpoint")
        .map(|endpoint| address("BlobEndpoint", endpoint))
        .transpose()?;
    let account = match find("accountname") {
        Some(account) => account.to_owned(),
        None => endpoint
            .as_ref()
            .and_then(account_of)
            .ok_or("AccountName is missing")?,
    };
    let mut settings = vec![("account_name".to_owned(), account.clone())];
    match (find("accountkey"), find("sharedaccesssignature")) {
        (Some(key), _) if !is_base64(key) => {
            return Err("AccountKey is not in base64; was the string cut?".to_owned());
        }
        (Some(key), _) => settings.push(("account_key".to_owned(), key.to_owned())),
        (None, Some(token)) if !token.contains('=') => {
            return Err("SharedAccessSignature is not a list of NAME=VALUE".to_owned());
        }
        (None, Some(token)) => settings.push(("sas_token".to_owned(), token.to_owned())),
        (None, None) => {
            return Err("it has neither AccountKey nor SharedAccessSignature".to_owned());
        }
    }
    let endpoint = match endpoint {
        Some(endpoint) => endpoint,
        None => {
            let protocol = find("defaultendpointsprotocol").unwrap_or("https");
            let suffix = find("endpointsuffix").unwrap_or(SUFFIX);
            let text = format!("{protocol}://{account}.blob.{suffix}");
            address(
                "DefaultEndpointsProtocol, AccountName or EndpointSuffix",
                &text,
            )?
        }
    };
    let endpoint = endpoint.as_str().trim_end_matches('/').to_owned();
    settings.push(("endpoint".to_owned(), endpoint));
    Ok(settings)
}

/// The settings for the emulator, which may run on another machine.
fn emulator(proxy: Option<&str>) -> Result<Settings, String> {
    let mut settings: Settings = EMULATOR
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    if let (Some(proxy), Some(endpoint)) = (proxy, settings.last_mut()) {
        let proxy = address("DevelopmentStorageProxyUri", proxy)?;
        let host = proxy.host_str().unwrap_or_default();
        endpoint.1 = format!("{}://{host}:10000/devstoreaccount1", proxy.scheme());
    }
    Ok(settings)
}

fn address(name: &str, text: &str) -> Result<Url, String> {
    let parsed = Url::parse(text).ok();
    let is_plain = |url: &Url| {
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none()
    };
    parsed
        .filter(is_plain)
        .ok_or_else(|| format!("{name} has no address that begins with http:// or https://"))
}

/// The account of an address: the first label of a domain, or else the first folder.
fn account_of(endpoint: &Url) -> Option<String> {
    let account = match endpoint.host()? {
        Host::Domain(domain) if domain.contains('.') => domain.split('.').next()?,
        _ => endpoint.path_segments()?.next()?,
    };
    if account.is_empty() {
        return None;
    }
    Some(account.to_owned())
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text.len().is_multiple_of(4) && text.len() - digits.len() <= 2 && digits.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "aGlkZGVuaGlkZGVuaGlkZGVuaGlkZGVu";

    fn expanded(text: &str) -> Result<Vec<(String, String)>> {
        expand(&[(CONNECTION_STRINGS[0].to_owned(), text.to_owned())], &[])
    }

    #[test]
    fn strings_as_the_portal_prints_them() {
        let full = format!(
            "DefaultEndpointsProtocol=https;AccountName=models;AccountKey={KEY};\
             EndpointSuffix=core.windows.net"
        );
        let china =
            format!("accountname=models;ACCOUNTKEY={KEY};EndpointSuffix=core.chinacloudapi.cn;");
        let azurite = format!(
            "DefaultEndpointsProtocol=http;AccountName=dev;AccountKey={KEY};\
             BlobEndpoint=http://127.0.0.1:10000/dev;QueueEndpoint=http://127.0.0.1:10001/dev"
        );
        let sas = "BlobEndpoint=https://models.blob.core.windows.net/;\
                   SharedAccessSignature=sv=2022-11-02&sp=rl&sig=hidden%3D";
        let proxied = "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite";
        for (text, account, secret, endpoint) in [
            (
                &*full,
                "models",
                KEY,
                "https://models.blob.core.windows.net",
            ),
            (
                &*china,
                "models",
                KEY,
                "https://models.blob.core.chinacloudapi.cn",
            ),
            (&*azurite, "dev", KEY, "http://127.0.0.1:10000/dev"),
            (
                sas,
                "models",
                "sv=2022-11-02&sp=rl&sig=hidden%3D",
                "https://models.blob.core.windows.net",
            ),
            (
                "UseDevelopmentStorage=true",
                EMULATOR[0].1,
                EMULATOR[1].1,
                EMULATOR[2].1,
            ),
            (
                proxied,
                EMULATOR[0].1,
                EMULATOR[1].1,
                "http://azurite:10000/devstoreaccount1",
            ),
        ] {
            let values: Vec<_> = expanded(text)
                .unwrap()
                .into_iter()
                .map(|(_, value)| value)
                .collect();
            assert_eq!(values, [account, secret, endpoint], "{text}");
        }
    }

    #[test]
    fn a_given_string_takes_out_that_of_the_environment() {
        let string = |account: &str| format!("AccountName={account};AccountKey={KEY}");
        let environment = vec![(CONNECTION_STRINGS[0].to_owned(), string("theirs"))];
        for (given, accounts) in [
            (string("mine"), (None, Some("mine"))),
            (String::new(), (None, None)),
        ] {
            let given = vec![("connection_string".to_owned(), given)];
            let (environment, given) = expand_both(environment.clone(), given).unwrap();
            let account = |settings: &Settings| settings.first().map(|(_, name)| name.clone());
            let found = (account(&environment), account(&given));
            assert_eq!((found.0.as_deref(), found.1.as_deref()), accounts);
        }
    }

    #[test]
    fn a_wrong_string_is_refused_by_the_variable_s_name_and_not_shown() {
        for (text, said) in [
            ("hidden".to_owned(), "part 1 is not KEY=VALUE"),
            (format!("AccountKey={KEY}"), "AccountName is missing"),
            ("AccountName=models".to_owned(), "neither AccountKey nor"),
            (
                "AccountName=models;AccountKey=hidden=".to_owned(),
                "was the string cut",
            ),
            (
                "AccountName=models;AccountKey=hidd!n==".to_owned(),
                "not in base64",
            ),
            (
                "AccountName=models;SharedAccessSignature=hidden".to_owned(),
                "is not a list of NAME=VALUE",
            ),
            (
                format!("AccountName=models;AccountKey={KEY};BlobEndpoint=hidden"),
                "BlobEndpoint has no address",
            ),
            (
                format!("DefaultEndpointsProtocol=ftp;AccountName=models;AccountKey={KEY}"),
                "has no address that begins with http",
            ),
            (
                format!("AccountName=models;AccountKey={KEY}\n"),
                "ends with a newline",
            ),
        ] {
            let error = expanded(&text).unwrap_err();
            let message = error.message();
            assert!(
                message.starts_with("AZURE_STORAGE_CONNECTION_STRING") && message.contains(said),
                "{text}: {message}"
            );
            assert!(
                !message.contains("hid") && !message.contains(KEY),
                "{message}"
            );
        }
        let both = [
            ("azure_storage_account_name", "another"),
            (
                "connection_string",
                "AccountName=models;AccountKey=aGlkZGVu",
            ),
        ];
        let both = both.map(|(key, value)| (key.to_owned(), value.to_owned()));
        for error in [expand(&both, &[]), expand(&both[1..], &both[..1])] {
            let error = error.unwrap_err();
            assert!(
                error.message().contains("AZURE_STORAGE_ACCOUNT_NAME"),
                "{error}"
            );
        }
    }
}
