import { spawn } from "node:child_process";

// Run the hook with an event, and return its answer; what goes wrong is an error.
function ask(event) {
  return new Promise((resolve, reject) => {
    const hook = spawn(COMMAND[0], COMMAND.slice(1), { stdio: ["pipe", "pipe", "ignore"], timeout: MILLISECONDS });
    let printed = "";
    hook.stdout.setEncoding("utf8").on("data", (text) => (printed += text));
    hook.stdin.on("error", () => {});
    hook.on("error", reject);
    hook.on("close", (code) => {
      try {
        if (code !== 0) throw new Error(`it ended with ${code}`);
        resolve(JSON.parse(printed));
      } catch (error) {
        reject(error);
      }
    });
    hook.stdin.end(JSON.stringify(event));
  });
}

// Return the answer about a call of a tool; without one it is denied.
function judge(event) {
  return ask(event).catch((error) => ({
    decision: "deny",
    reason: `CSTP: the hook failed, so that the call was not checked: ${error.message}`,
  }));
}
