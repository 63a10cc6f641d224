// Calls of Go's gRPC: calls ADDRESS SMALL LARGE LARGEST, files with a message of ModelInfer each.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/ioutil"
	"log"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	infer  = "/inference.GRPCInferenceService/ModelInfer"
	stream = "/inference.GRPCInferenceService/ModelStreamInfer"
	upload = "/headrace.v1.InferenceEngine/UploadModel"
	health = "/grpc.health.v1.Health/Check"
	watch  = "/grpc.health.v1.Health/Watch"
)

var both = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// The codec of messages that are bytes already.
type same struct{}

func (same) Marshal(message interface{}) ([]byte, error) { return message.([]byte), nil }
func (same) Unmarshal(data []byte, message interface{}) error {
	*message.(*[]byte) = data
	return nil
}
func (same) Name() string { return "proto" }

func check(holds bool, what string, more ...interface{}) {
	if !holds {
		log.Fatal(append([]interface{}{what}, more...)...)
	}
}

func call(client *grpc.ClientConn, ctx context.Context, method string, message []byte, options ...grpc.CallOption) []byte {
	var reply []byte
	err := client.Invoke(ctx, method, message, &reply, options...)
	check(err == nil, "a call", err)
	return reply
}

func open(client *grpc.ClientConn, ctx context.Context, method string) grpc.ClientStream {
	opened, err := client.NewStream(ctx, both, method)
	check(err == nil, "a stream", err)
	return opened
}

// Watches the server's health until the context ends, and returns the status of that.
func watched(client *grpc.ClientConn, ctx context.Context, seen func()) codes.Code {
	opened := open(client, ctx, watch)
	opened.SendMsg([]byte{})
	opened.CloseSend()
	for {
		var reply []byte
		if err := opened.RecvMsg(&reply); err != nil {
			return status.Code(err)
		}
		seen()
	}
}

func main() {
	var files [3][]byte
	for index := range files {
		data, err := ioutil.ReadFile(os.Args[2+index])
		check(err == nil, "a file", err)
		files[index] = data[5:]
	}
	small, large, largest := files[0], files[1], files[2]
	client, err := grpc.Dial(
		os.Args[1], grpc.WithInsecure(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodec(same{}), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}))
	check(err == nil, "a connection", err)
	now := context.Background()

	fmt.Println("calls")
	var waiting sync.WaitGroup
	for count := 0; count < 32; count++ {
		waiting.Add(1)
		go func() { call(client, now, infer, small); waiting.Done() }()
	}
	waiting.Wait()

	fmt.Println("sizes")
	call(client, now, health, []byte{})
	check(len(call(client, now, infer, large)) > 16<<20, "a short reply")
	check(len(call(client, now, infer, largest)) > 63<<20, "a short reply")

	fmt.Println("metadata")
	long := string(bytes.Repeat([]byte("a"), 15000))
	with := metadata.AppendToOutgoingContext(now, "x-long", long, "x-bytes-bin", "\x00\xff\x00")
	call(client, with, infer, small)
	call(client, with, infer, small)

	fmt.Println("compressed")
	call(client, now, infer, large, grpc.UseCompressor("gzip"))

	fmt.Println("deadline")
	soon, cancel := context.WithTimeout(now, 500*time.Millisecond)
	code := watched(client, soon, func() {})
	cancel()
	check(code == codes.DeadlineExceeded, "deadline", code)

	fmt.Println("cancels")
	for count := 0; count < 100; count++ {
		until, cancel := context.WithCancel(now)
		code := watched(client, until, cancel)
		check(code == codes.Canceled, "cancel", code)
	}

	fmt.Println("streams")
	opened := open(client, now, stream)
	go func() {
		for count := 0; count < 504; count++ {
			if message := small; opened.SendMsg(message) != nil {
				return
			}
		}
		opened.SendMsg(large)
		opened.CloseSend()
	}()
	replies := 0
	for ; ; replies++ {
		var reply []byte
		if err := opened.RecvMsg(&reply); err == io.EOF {
			break
		} else {
			check(err == nil, "a reply", err)
		}
	}
	check(replies == 505, "replies", replies)
	opened = open(client, now, upload)
	chunk := append([]byte{0x0a, 0xe8, 0x07}, bytes.Repeat([]byte("a"), 1000)...)
	for count := 0; count < 100; count++ {
		check(opened.SendMsg(chunk) == nil, "a chunk")
	}
	opened.CloseSend()
	var reply []byte
	check(opened.RecvMsg(&reply) == nil && bytes.Contains(reply, []byte("sha256:")), "an upload")

	fmt.Println("pings") // one each ten seconds, while a call is open and nothing comes
	late, cancel := context.WithTimeout(now, 35*time.Second)
	code = watched(client, late, func() {})
	cancel()
	check(code == codes.DeadlineExceeded, "pings", code)
	call(client, now, infer, small)
	fmt.Println("done")
}
