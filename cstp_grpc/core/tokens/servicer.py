"""The servicer of tokens: translate, call the domain once, translate back."""

from __future__ import annotations

from datetime import timedelta

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.core.tokens.administration import TokenAdministration
from cstp_grpc.core.tokens.model import AgentToken
from cstp_grpc.gen.cstp.v1 import admin_pb2, admin_pb2_grpc, options_pb2
from cstp_grpc.platform.storage.pagination import PageRequest

PERMISSION = proto_values.EnumMapping(options_pb2.Permission, Permission)
TOKEN = MessageMapper(AgentToken, admin_pb2.AgentToken, {"agent": "identity.name"}, parts=("identity",))


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Serves cstp.v1.AdminService."""

    def __init__(self, administration: TokenAdministration) -> None:
        self._administration = administration

    def CreateToken(
        self, request: admin_pb2.CreateTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.CreateTokenResponse:
        made = self._administration.create(
            current_caller.get(),
            request.request_id,
            request.agent,
            frozenset(PERMISSION.words(request.permissions)),
            proto_values.datetime_field(request, "expires_at"),
            proto_values.optional_field(request, "note"),
        )
        return admin_pb2.CreateTokenResponse(token=TOKEN.encode(made.token), secret=made.secret)

    def ListTokens(
        self, request: admin_pb2.ListTokensRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListTokensResponse:
        page = self._administration.page(
            current_caller.get(),
            proto_values.optional_field(request, "agent"),
            PageRequest(request.page_size, request.page_token),
            with_ended=request.with_ended,
            id_prefix=proto_values.optional_field(request, "id_prefix"),
        )
        return admin_pb2.ListTokensResponse(tokens=map(TOKEN.encode, page.items), next_page_token=page.next_token)

    def RotateToken(
        self, request: admin_pb2.RotateTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RotateTokenResponse:
        made = self._administration.rotate(
            current_caller.get(),
            request.request_id,
            request.id,
            timedelta(seconds=request.keep_seconds) if request.HasField("keep_seconds") else None,
            proto_values.datetime_field(request, "expires_at"),
        )
        return admin_pb2.RotateTokenResponse(token=TOKEN.encode(made.token), secret=made.secret)

    def RevokeToken(
        self, request: admin_pb2.RevokeTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RevokeTokenResponse:
        revoked = self._administration.revoke(current_caller.get(), request.id)
        return admin_pb2.RevokeTokenResponse(token=TOKEN.encode(revoked))
