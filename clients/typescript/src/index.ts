export { Client, type ClientOptions } from "./client.js";
export * from "./cstp_error.js";
export * from "./error_classes.js";
export * from "./errors.js";
export * from "./guard.js";
export * from "./gen/cstp/v1/cstp_pb.js";
export * from "./gen/cstp/v1/journal_pb.js";
export * from "./gen/cstp/v1/types_pb.js";
export { LiaisonService } from "./gen/liaison/v1/liaison_pb.js";
