/** Style sheets, which the build puts into `app.css`. */
declare module "*.css";
