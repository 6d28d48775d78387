package cstp

import (
	"crypto/x509"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // Calls go to servers that say they are well, as the service config wants it.
	"google.golang.org/grpc/keepalive"
)

//go:embed gen/service_config.json
var serviceConfig []byte

// maxAnswerBytes bounds one answer; gRPC's own bound is less than what a long list takes.
const maxAnswerBytes = 64 << 20

// maxRepeatedBytes bounds what is kept to be sent again: more than the longest request that servers take by default.
const maxRepeatedBytes = 8 << 20

// transportOf returns where the server of a target is, in the words of gRPC, and how to connect to it.
func transportOf(target string, roots []byte) (string, credentials.TransportCredentials, error) {
	if !strings.Contains(target, "://") {
		target = "grpc://" + target
	}
	parsed, err := url.Parse(target)
	if err != nil {
		return "", nil, invalid("target", "must be of the form grpc://HOST:PORT")
	}
	port := parsed.Port()
	if port == "" && parsed.Scheme == "https" {
		port = "443"
	}
	if parsed.Hostname() == "" || port == "" || parsed.User != nil || parsed.RawQuery != "" || strings.Trim(parsed.Path, "/") != "" {
		return "", nil, invalid("target", "must be of the form grpc://HOST:PORT")
	}
	// Without this scheme the resolver would not look up every address of the name.
	address := "dns:///" + net.JoinHostPort(parsed.Hostname(), port)
	switch parsed.Scheme {
	case "grpc", "http":
		return address, insecure.NewCredentials(), nil
	case "grpcs", "https":
		trusted, err := authorities(roots)
		return address, credentials.NewClientTLSFromCert(trusted, ""), err
	}
	return "", nil, invalid("target", "must begin with grpc://, grpcs://, http:// or https://")
}

// authorities returns who may vouch for servers; nil are the authorities of the system.
func authorities(roots []byte) (*x509.CertPool, error) {
	if roots == nil {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		return nil, invalid("rootCertificates", "must hold certificates in PEM")
	}
	return pool, nil
}

// authorization returns the header that carries a token; nothing where there is none.
func authorization(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	if strings.ContainsFunc(token, func(character rune) bool { return character < '!' || character > '~' }) {
		return "", invalid("token", "must be visible ASCII characters without spaces")
	}
	return "Bearer " + token, nil
}

// connecting returns how connections are made and kept.
func connecting() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithUserAgent("cstp-go"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes), grpc.MaxRetryRPCBufferSize(maxRepeatedBytes)),
		// After a failure gRPC refuses calls until it connects again; the pauses between attempts are of this order.
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: 20 * time.Second,
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
		}),
		// Who watches a server that vanished without a word would wait for ever.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 30 * time.Second}),
	}
}

// readConfig returns a service config without its timeouts, and the timeouts by the paths of the methods: gRPC would
// cut the deadlines of callers to them, and here they are for calls that have none. Attempts above 1 replace how often
// calls are tried.
func readConfig(content []byte, attempts int) (string, map[string]time.Duration, error) {
	var config map[string]any
	var methods struct {
		MethodConfig []struct {
			Name    []struct{ Service, Method string }
			Timeout string
		}
	}
	if err := json.Unmarshal(content, &config); err != nil {
		return "", nil, fmt.Errorf("cstp: the service config: %w", err)
	}
	if err := json.Unmarshal(content, &methods); err != nil {
		return "", nil, fmt.Errorf("cstp: the service config: %w", err)
	}
	timeouts := map[string]time.Duration{}
	for _, entry := range methods.MethodConfig {
		if entry.Timeout == "" {
			continue
		}
		timeout, err := time.ParseDuration(entry.Timeout)
		if err != nil {
			return "", nil, fmt.Errorf("cstp: the service config: %w", err)
		}
		for _, name := range entry.Name {
			timeouts["/"+name.Service+"/"+name.Method] = timeout
		}
	}
	for _, entry := range config["methodConfig"].([]any) {
		entry := entry.(map[string]any)
		delete(entry, "timeout")
		if policy, repeated := entry["retryPolicy"].(map[string]any); repeated && attempts > 1 {
			policy["maxAttempts"] = attempts
		}
	}
	bare, err := json.Marshal(config)
	return string(bare), timeouts, err
}
