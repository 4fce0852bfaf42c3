// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
)

// Synchronizing returns an option by which a plugin reduces the runtime's report of all pods and
// containers, message by message. Without the option, the stub would keep all messages until the
// last message has arrived, and tenants control the size of messages.
func Synchronizing(reduce func(*api.SynchronizeRequest)) stub.Option {
	return stub.WithTTRPCOptions(nil, []ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(reducing(reduce))})
}

// reducing returns an interceptor that reduces each message of the report once it is decoded.
func reducing(reduce func(*api.SynchronizeRequest)) ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
		return method(ctx, func(message any) error {
			err := unmarshal(message)
			if request, ok := message.(*api.SynchronizeRequest); ok {
				reduce(request)
			}
			return err
		})
	}
}
