//! Headless Chromium, driven by the protocol of its developer tools over a pipe: JSON messages, each ended by a zero byte.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest wait for the browser.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Browser with one page.
pub(crate) struct Browser {
    process: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    profile: PathBuf,
    /// Errors of the page's script, and what the page's policy has blocked.
    pub(crate) errors: Vec<String>,
}

impl Browser {
    /// Starts Chromium. It reads requests from descriptor 3 and writes to descriptor 4.
    pub(crate) fn start(name: &str) -> Browser {
        let installed = Command::new("sh").args(["-c", "command -v chromium"]).output();
        assert!(
            installed.is_ok_and(|output| output.status.success()),
            "this test needs Chromium: `sudo apt-get install chromium` (or `make test`)"
        );
        let profile = std::env::temp_dir().join(format!("palisade-browser-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&profile);
        std::fs::create_dir_all(&profile).unwrap();
        let script = "exec chromium --headless=new --no-sandbox --remote-debugging-pipe --disable-gpu \
             --disable-dev-shm-usage --no-first-run --no-proxy-server --hide-scrollbars --disable-extensions \
             --disable-background-networking --disable-component-update --no-zygote --in-process-gpu --user-data-dir=\"$HOME\" \
             about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut process = Command::new("sh")
            .args(["-c", script])
            .env("HOME", &profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (requests, responses) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, messages) = channel();
        spawn(move || {
            for message in BufReader::new(responses).split(0).map_while(Result::ok) {
                let _ = sender.send(serde_json::from_slice(&message).unwrap());
            }
        });
        let errors = Vec::new();
        let mut browser = Browser { process, requests, messages, last: 0, session: None, profile, errors };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime.enable", "Page.enable", "Log.enable"] {
            browser.call(domain, &json!({}));
        }
        browser
    }

    /// Sends a request, and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        write!(self.requests, "{request}\0").unwrap();
        let start = Instant::now();
        loop {
            let left = TIMEOUT.saturating_sub(start.elapsed());
            let mut message = self.messages.recv_timeout(left).expect("the browser answers");
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            let is_error = message["params"]["entry"]["level"] == "error";
            if message["method"] == "Runtime.exceptionThrown" || is_error {
                self.errors.push(message["params"].to_string());
            }
        }
    }

    pub(crate) fn open(&mut self, address: &str) {
        self.call("Page.navigate", &json!({"url": address}));
    }

    /// Evaluates an expression of JavaScript.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.call("Runtime.evaluate", &parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Text of the elements that a selector of CSS finds.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let list = format!("[...document.querySelectorAll({})]", json!(selector));
        let text = self.evaluate(&format!("{list}.map(element => element.textContent).join('\\n')"));
        text.as_str().unwrap().to_owned()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.evaluate(expression) != json!(true) {
            let state = "document.body?.innerText ?? ''";
            assert!(start.elapsed() < TIMEOUT, "{expression}: {}", self.evaluate(state));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sets the size of the window, and whether the reader prefers dark pages.
    pub(crate) fn resize(&mut self, width: u32, height: u32, is_dark: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &feature);
    }

    /// Picture of the whole page: PNG.
    pub(crate) fn screenshot(&mut self) -> Vec<u8> {
        let size = self.call("Page.getLayoutMetrics", &json!({}))["cssContentSize"].take();
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let parameters = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.call("Page.captureScreenshot", &parameters);
        from_base64(picture["data"].as_str().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Closing the pipe ends the browser with all of its processes.
        let _ = write!(self.requests, "{}\0", json!({"id": 0, "method": "Browser.close"}));
        let start = Instant::now();
        while self.process.try_wait().is_ok_and(|status| status.is_none()) && start.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// Decodes base64 (RFC 4648 section 4).
fn from_base64(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |digit: u8| digits.iter().position(|known| *known == digit).unwrap() as u32;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | value(*digit)) << (6 * (4 - group.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}
