/** The page of rolltape: it shows what a store holds, and asks nothing but the control listener. */

import { render } from "preact";
import { FILE } from "./api/file";
import { takeToken } from "./api/token";
import { App } from "./app";
import { listenForKeys } from "./parts/keys";
import { applyTheme, theme } from "./parts/theme";
import { home } from "./route";
import "./style/colors.css";
import "./style/base.css";
import "./style/marks.css";
import "./style/dialogs.css";
import "./style/lists.css";
import "./style/episode.css";
import "./style/call.css";
import "./style/prose.css";
import "./style/compare.css";
import "./style/tokens.css";
import "./style/plots.css";
import "./style/health.css";

if (!FILE) takeToken();
else if (location.hash.length < 3) location.replace(home());
applyTheme(theme());
listenForKeys();
render(<App />, document.body);
