# cli_owner.py: what segue wrote for itself is read back only from folders and files that this user owns and others cannot
# write: packed weights, stored prefixes, sessions. The cases with another owner need root, which can give files away.
# SPDX-License-Identifier: MIT
import glob, json, os, shutil, tempfile
from clitest import done, expect, run, tiny_model

home = tempfile.mkdtemp(prefix="segue-owner-")
prompt = "Rivers, lakes, mountains and valleys, with a sentence about each of them:"
m = tiny_model("owner", width=320)
arguments = ("run", "-m", m, "--unit", "cpu", "--raw", "-n", "3", "--greedy")


def answer():
    code, out, err = run(*arguments, "-p", prompt, "--json", "--store", "on", SEGUE_HOME=home)
    return code, json.loads(out) if code == 0 else {}, err


code, first, err = answer()
expect("first run", code == 0 and first["weight_cache"] == "written", (first, err))
code, second, err = answer()
expect("own files are used", code == 0 and second["weight_cache"] == "mapped" and second["reused_tokens"] > 16
       and second["ids"] == first["ids"], second)
packs = glob.glob(home + "/cache/cpu/*.pack")
expect("there is a pack and a stored prefix", len(packs) == 1 and glob.glob(home + "/cache/prefixes/*.state"), packs)

changes = [("writable by others", lambda p: os.chmod(p, os.stat(p).st_mode | 0o022),
            lambda p: os.chmod(p, 0o700 if os.path.isdir(p) else 0o600))]
if os.geteuid() == 0:
    changes.append(("of another user", lambda p: os.chown(p, 12345, 12345), lambda p: os.chown(p, 0, 0)))
for name, spoil, mend in changes:
    for path in (packs[0], home + "/cache/cpu"):
        spoil(path)
        code, o, err = answer()
        expect(f"a pack {name}: {os.path.basename(path)}", code == 0 and o["weight_cache"] != "mapped"
               and path in (o.get("weight_cache_reason") or ""), (o.get("weight_cache"), o.get("weight_cache_reason"), err))
        mend(path)
        answer()
        packs = glob.glob(home + "/cache/cpu/*.pack")
    for path in glob.glob(home + "/cache/prefixes/*.state"):
        spoil(path)
    code, o, err = answer()
    expect(f"stored prefixes {name}", code == 0 and o["reused_tokens"] == 0, o)
    shutil.rmtree(home + "/cache/prefixes")
    answer()

# Root could read everything: the store's folder of another user is refused, not used.
if os.geteuid() == 0:
    os.chown(home + "/cache/prefixes", 12345, 12345)
    code, o, err = answer()
    expect("a store folder of another user", code != 0 and "belongs to user 12345" in err, (code, err))
    os.chown(home + "/cache/prefixes", 0, 0)


def talk(text):
    return run(*arguments, "-p", text, "--session", "talk", SEGUE_HOME=home)


code, out, err = talk(prompt)
session = home + "/data/sessions/talk.state"
expect("a session", code == 0 and os.path.exists(session), err)
os.chmod(session, 0o666)
code, out, err = talk(prompt + " More.")
expect("a session that others may write is refused", code != 0 and "other users may write" in err, (code, err))
os.chmod(session, 0o600)
code, out, err = talk(prompt + " More.")
expect("and used again when it is private", code == 0, err)
shutil.rmtree(home)
done()
